// What sources of kernels include before all else: CUDA's own headers and the few instructions of
// tensor cores, shared memory and asynchronous copies that kernels use; or, where the compiler is
// not CUDA's, the same names on the CPU (emulated.h), so that tests need no GPU. Not for headers of
// host code.
#pragma once

#include "kernels/cuda/stream.h"

#ifndef __CUDACC__

#include "kernels/cuda/emulated.h"

namespace convene::kernels::cuda {

// Kernels run one after the other here.
inline void LetNextBegin() {}
inline void AwaitPrevious() {}
inline void BeginAfterPrevious() {}
inline void PrefetchToL2(const void*, unsigned) {}

}  // namespace convene::kernels::cuda

#else

#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>
#include <utility>

namespace convene::kernels::cuda {

using bf16 = __nv_bfloat16;

// A kernel may begin while the one before it on the stream still runs (programmatic dependent
// launch), so that its launch and what it prepares cost no time: whatever an earlier kernel wrote,
// or still reads, it touches behind AwaitPrevious alone.
__device__ __forceinline__ void LetNextBegin() {
  asm volatile("griddepcontrol.launch_dependents;\n" ::: "memory");
}
__device__ __forceinline__ void AwaitPrevious() {
  asm volatile("griddepcontrol.wait;\n" ::: "memory");
}
// What every kernel begins with that prepares nothing.
__device__ __forceinline__ void BeginAfterPrevious() {
  LetNextBegin();
  AwaitPrevious();
}

// Brings `bytes` at `global`, both multiples of 16, to the L2 cache, and waits for nothing.
__device__ __forceinline__ void PrefetchToL2(const void* global, unsigned bytes) {
  asm volatile(
      "cp.async.bulk.prefetch.L2.global [%0], %1;\n" ::"l"(__cvta_generic_to_global(global)),
      "r"(bytes)
      : "memory");
}

// Enqueues the kernel, which calls AwaitPrevious; errors are cudaGetLastError's.
template <typename... Parameters, typename... Arguments>
void Launch(void (*kernel)(Parameters...), dim3 grid, dim3 block, size_t shared_bytes,
            StreamHandle stream, Arguments&&... arguments) {
  constexpr size_t kSharedBytesWithoutAsking = 48 << 10;
  if (shared_bytes > kSharedBytesWithoutAsking) {
    // Where this fails, so does the launch.
    static_cast<void>(cudaFuncSetAttribute(reinterpret_cast<const void*>(kernel),
                                           cudaFuncAttributeMaxDynamicSharedMemorySize,
                                           static_cast<int>(shared_bytes)));
  }
  cudaLaunchConfig_t config = {};
  config.gridDim = grid;
  config.blockDim = block;
  config.dynamicSmemBytes = shared_bytes;
  config.stream = stream;
  cudaLaunchAttribute early = {};
  early.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  early.val.programmaticStreamSerializationAllowed = 1;
  config.attrs = &early;
  config.numAttrs = 1;
  static_cast<void>(cudaLaunchKernelEx(&config, kernel, std::forward<Arguments>(arguments)...));
}

// The launch's shared_bytes, aligned to 1024.
__device__ __forceinline__ std::byte* DynamicShared() {
  extern __shared__ __align__(1024) std::byte dynamic_shared[];
  return dynamic_shared;
}

__device__ __forceinline__ uint32_t SharedAddress(const void* shared) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(shared));
}

// `low` in the lower half.
__device__ __forceinline__ uint32_t PackBf16(float low, float high) {
  uint32_t packed;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(packed) : "f"(high), "f"(low));
  return packed;
}
__device__ __forceinline__ float LowOfBf16(uint32_t packed) {
  return __uint_as_float(packed << 16);
}
__device__ __forceinline__ float HighOfBf16(uint32_t packed) {
  return __uint_as_float(packed & 0xffff0000u);
}

// 1 / x, rounded to nearest.
__device__ __forceinline__ float ReciprocalOf(float x) { return __frcp_rn(x); }

// d (16, 8) += a (16, 16) b (16, 8) by a warp. With g = lane / 4 and t = lane % 4, lower halves
// first: d[0..1] is row g, columns 2t and 2t + 1; d[2..3] row g + 8. a[0] is row g, columns 2t and
// 2t + 1; a[1] row g + 8; a[2..3] as a[0..1] at columns 2t + 8 and 2t + 9. b[0] is rows 2t and
// 2t + 1, column g; b[1] rows 2t + 8 and 2t + 9.
__device__ __forceinline__ void MmaBf16(float d[4], const uint32_t a[4], const uint32_t b[2]) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
      "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};\n"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

// Four matrices of 8 x 8 16-bit elements by a warp: lane i gives the address of row i % 8 of matrix
// i / 8 (16 bytes, aligned), and gets into r[m] elements 2t and 2t + 1 of row g of matrix m; Trans:
// of column g.
__device__ __forceinline__ void LdMatrix4(uint32_t r[4], const void* shared_row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];\n"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(SharedAddress(shared_row))
               : "memory");
}
__device__ __forceinline__ void LdMatrix4Trans(uint32_t r[4], const void* shared_row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];\n"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(SharedAddress(shared_row))
               : "memory");
}

// Copies 16 bytes, or writes zeros where not `valid` (then `global` is not read). Done once the
// thread has waited for its group; others see it after a barrier that follows the wait.
__device__ __forceinline__ void CopyAsync16(void* shared, const void* global, bool valid) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;\n" ::"r"(SharedAddress(shared)),
               "l"(__cvta_generic_to_global(global)), "r"(valid ? 16 : 0)
               : "memory");
}
__device__ __forceinline__ void CopyAsyncCommit() {
  asm volatile("cp.async.commit_group;\n" ::: "memory");
}
// Waits until at most kGroups of the thread's latest groups are under way.
template <int kGroups>
__device__ __forceinline__ void CopyAsyncWait() {
  asm volatile("cp.async.wait_group %0;\n" ::"n"(kGroups) : "memory");
}

}  // namespace convene::kernels::cuda

#endif
