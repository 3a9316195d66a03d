// CUDA's names on the CPU, for tests of kernels where there is no GPU: a block's threads are fibers
// that run in turn and change at barriers and at what a warp does together, so that results are
// those of a GPU but for rounding. Found on the way: barriers that not all threads reach, lanes
// that part at what they do together, missing waits for asynchronous copies, shared memory that is
// read before it is written (it begins as NaN) or written beyond its end, misaligned rows. Blocks
// run one after the other. Not here: wgmma, TMA, clusters, inline PTX, blocks that wait for each
// other. Only for device_code.h to include.
#pragma once

#include <math.h>

#include <bit>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <type_traits>

#include "base/check.h"
#include "kernels/cuda/stream.h"

// NOLINTBEGIN: the names are CUDA's.

#define __global__
#define __device__
#define __host__
#define __grid_constant__
#define __forceinline__ inline
#define __launch_bounds__(...)
#define __align__(bytes) __attribute__((aligned(bytes)))
// In a section of its own, so that it can be filled with NaN before each block: not of templates
// outside of anonymous namespaces, where g++ drops it. Alignment is written __shared__
// __align__(16).
#define __shared__ static __attribute__((section("emulated_shared")))

#define CONVENE_VECTOR(Type, Scalar)                                   \
  struct __align__(8) Type##2 { Scalar x, y; };                        \
  struct __align__(16) Type##4 { Scalar x, y, z, w; };                 \
  inline Type##2 make_##Type##2(Scalar x, Scalar y) { return {x, y}; } \
  inline Type##4 make_##Type##4(Scalar x, Scalar y, Scalar z, Scalar w) { return {x, y, z, w}; }
CONVENE_VECTOR(float, float)
CONVENE_VECTOR(uint, unsigned)
#undef CONVENE_VECTOR
struct uint3 {
  unsigned x, y, z;
};

struct dim3 {
  unsigned x, y, z;
  constexpr dim3(unsigned x = 1, unsigned y = 1, unsigned z = 1) : x(x), y(y), z(z) {}
};

// Those of the thread that runs.
inline uint3 threadIdx;
inline uint3 blockIdx;
inline dim3 blockDim;
inline dim3 gridDim;

namespace convene::kernels::cuda::emulated {

// What a warp does together: the last lane of `mask` that comes does it for all, given what each
// brought (null for lanes not in the mask or ended), while the others wait.
using WarpFunction = void (*)(void* const lanes[32]);
void Together(const char* name, uint32_t mask, bool needs_all_lanes, void* mine,
              WarpFunction function);
// A barrier of the block: the sum of `value` over all threads that have not ended.
int BlockSum(const char* name, int value);
std::byte* DynamicSharedMemory();
// That `data` is shared memory, aligned to `bytes`.
void CheckShared(const char* name, const void* data, int bytes);
void CopyLater(void* shared, const void* global, bool valid);
void CommitCopies();
void FinishCopies(int groups_left);
void RunGrid(dim3 grid, dim3 block, size_t shared_bytes, const std::function<void()>& thread);

enum class Shuffle : uint8_t { kIndex, kUp, kDown, kXor };
struct ShuffleLane {
  uint64_t value;
  Shuffle kind;
  int by;
  int width;
};
void ShuffleLanes(void* const lanes[32]);

template <typename T>
T ShuffleTogether(const char* name, Shuffle kind, unsigned mask, T value, int by, int width) {
  static_assert(std::is_trivially_copyable_v<T> && sizeof(T) <= 8);
  ShuffleLane lane = {0, kind, by, width};
  std::memcpy(&lane.value, &value, sizeof(T));
  Together(name, mask, false, &lane, ShuffleLanes);
  std::memcpy(&value, &lane.value, sizeof(T));
  return value;
}

}  // namespace convene::kernels::cuda::emulated

inline void __syncthreads() { convene::kernels::cuda::emulated::BlockSum("__syncthreads", 0); }
inline int __syncthreads_count(int predicate) {
  return convene::kernels::cuda::emulated::BlockSum("__syncthreads_count", predicate != 0);
}
inline void __syncwarp(unsigned mask = 0xffffffff) {
  int nothing = 0;
  convene::kernels::cuda::emulated::Together("__syncwarp", mask, false, &nothing,
                                             [](void* const*) {});
}
template <typename T>
T __shfl_sync(unsigned mask, T value, int lane, int width = 32) {
  return convene::kernels::cuda::emulated::ShuffleTogether(
      "__shfl_sync", convene::kernels::cuda::emulated::Shuffle::kIndex, mask, value, lane, width);
}
template <typename T>
T __shfl_up_sync(unsigned mask, T value, unsigned by, int width = 32) {
  return convene::kernels::cuda::emulated::ShuffleTogether(
      "__shfl_up_sync", convene::kernels::cuda::emulated::Shuffle::kUp, mask, value,
      static_cast<int>(by), width);
}
template <typename T>
T __shfl_down_sync(unsigned mask, T value, unsigned by, int width = 32) {
  return convene::kernels::cuda::emulated::ShuffleTogether(
      "__shfl_down_sync", convene::kernels::cuda::emulated::Shuffle::kDown, mask, value,
      static_cast<int>(by), width);
}
template <typename T>
T __shfl_xor_sync(unsigned mask, T value, int by, int width = 32) {
  return convene::kernels::cuda::emulated::ShuffleTogether(
      "__shfl_xor_sync", convene::kernels::cuda::emulated::Shuffle::kXor, mask, value, by, width);
}
inline unsigned __ballot_sync(unsigned mask, int predicate) {
  unsigned lane = predicate != 0;
  convene::kernels::cuda::emulated::Together("__ballot_sync", mask, false, &lane,
                                             [](void* const lanes[32]) {
                                               unsigned ballot = 0;
                                               for (int i = 0; i < 32; ++i) {
                                                 if (lanes[i] != nullptr)
                                                   ballot |= *static_cast<unsigned*>(lanes[i]) << i;
                                               }
                                               for (int i = 0; i < 32; ++i) {
                                                 if (lanes[i] != nullptr)
                                                   *static_cast<unsigned*>(lanes[i]) = ballot;
                                               }
                                             });
  return lane;
}
inline int __any_sync(unsigned mask, int predicate) { return __ballot_sync(mask, predicate) != 0; }
inline int __all_sync(unsigned mask, int predicate) { return __ballot_sync(mask, !predicate) == 0; }

namespace convene::kernels::cuda::emulated {
template <typename T, typename Fold>
T FoldTogether(const char* name, unsigned mask, T value, Fold) {
  Together(name, mask, false, &value, [](void* const lanes[32]) {
    T* total = nullptr;
    for (int i = 0; i < 32; ++i) {
      if (lanes[i] == nullptr) continue;
      T* lane = static_cast<T*>(lanes[i]);
      if (total == nullptr) {
        total = lane;
      } else {
        *total = Fold()(*total, *lane);
      }
    }
    for (int i = 0; i < 32; ++i) {
      if (lanes[i] != nullptr) *static_cast<T*>(lanes[i]) = *total;
    }
  });
  return value;
}
}  // namespace convene::kernels::cuda::emulated
template <typename T>
T __reduce_add_sync(unsigned mask, T value) {
  return convene::kernels::cuda::emulated::FoldTogether("__reduce_add_sync", mask, value,
                                                        [](T a, T b) { return a + b; });
}
template <typename T>
T __reduce_max_sync(unsigned mask, T value) {
  return convene::kernels::cuda::emulated::FoldTogether("__reduce_max_sync", mask, value,
                                                        [](T a, T b) { return a < b ? b : a; });
}
template <typename T>
T __reduce_min_sync(unsigned mask, T value) {
  return convene::kernels::cuda::emulated::FoldTogether("__reduce_min_sync", mask, value,
                                                        [](T a, T b) { return b < a ? b : a; });
}

// Fibers change only where threads wait, so that plain arithmetic is atomic.
template <typename T>
T atomicAdd(T* to, std::type_identity_t<T> value) {
  const T before = *to;
  *to = before + value;
  return before;
}
template <std::integral T>
T atomicMax(T* to, std::type_identity_t<T> value) {
  const T before = *to;
  if (value > before) *to = value;
  return before;
}
template <std::integral T>
T atomicOr(T* to, std::type_identity_t<T> value) {
  const T before = *to;
  *to = before | value;
  return before;
}
inline void __threadfence() {}

template <typename T>
T __ldg(const T* from) {
  CHECK(reinterpret_cast<uintptr_t>(from) % sizeof(T) == 0, "__ldg of a misaligned address");
  return *from;
}
template <typename T>
T __ldcg(const T* from) {
  return __ldg(from);
}

// Of the same type alone: CUDA takes mixed ones too.
template <typename T>
  requires std::is_arithmetic_v<T>
constexpr T min(T a, T b) {
  return b < a ? b : a;
}
template <typename T>
  requires std::is_arithmetic_v<T>
constexpr T max(T a, T b) {
  return a < b ? b : a;
}
// Of NaN and a number, CUDA takes the number.
inline float min(float a, float b) { return fminf(a, b); }
inline float max(float a, float b) { return fmaxf(a, b); }

inline float __expf(float x) { return expf(x); }
inline float __fdividef(float a, float b) { return a / b; }
inline float __frcp_rn(float x) { return 1 / x; }
inline float __fadd_rn(float a, float b) { return a + b; }
inline float __fmul_rn(float a, float b) { return a * b; }
inline unsigned __float_as_uint(float x) { return std::bit_cast<unsigned>(x); }
inline float __uint_as_float(unsigned x) { return std::bit_cast<float>(x); }
inline int __popc(unsigned x) { return std::popcount(x); }
inline int __ffs(int x) { return __builtin_ffs(x); }
inline int __clz(int x) { return std::countl_zero(static_cast<unsigned>(x)); }

struct __nv_bfloat16 {
  __nv_bfloat16() = default;
  __nv_bfloat16(float value) {
    const uint32_t bits = std::bit_cast<uint32_t>(value);
    // NaN has one form; otherwise to nearest, ties to even.
    __x = value != value ? 0x7fff : static_cast<uint16_t>((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
  }
  operator float() const { return std::bit_cast<float>(static_cast<uint32_t>(__x) << 16); }
  uint16_t __x;
};

// NOLINTEND

namespace convene::kernels::cuda {

using bf16 = __nv_bfloat16;  // NOLINT(readability-identifier-naming): as CUDA names it

// What these do, and how fragments lie in lanes, device_code.h says.

template <typename... Parameters, typename... Arguments>
void Launch(void (*kernel)(Parameters...), dim3 grid, dim3 block, size_t shared_bytes, StreamHandle,
            Arguments&&... arguments) {
  [&](Parameters... parameters) {
    emulated::RunGrid(grid, block, shared_bytes, [&] { kernel(parameters...); });
  }(static_cast<Arguments&&>(arguments)...);
}

inline std::byte* DynamicShared() { return emulated::DynamicSharedMemory(); }

inline uint32_t PackBf16(float low, float high) {
  return bf16(low).__x | static_cast<uint32_t>(bf16(high).__x) << 16;
}
inline float LowOfBf16(uint32_t packed) { return std::bit_cast<float>(packed << 16); }
inline float HighOfBf16(uint32_t packed) { return std::bit_cast<float>(packed & 0xffff0000u); }

inline float ReciprocalOf(float x) { return 1 / x; }

void MmaBf16(float d[4], const uint32_t a[4], const uint32_t b[2]);
void LdMatrix4(uint32_t r[4], const void* shared_row);
void LdMatrix4Trans(uint32_t r[4], const void* shared_row);

// The bytes come with the wait, no sooner.
inline void CopyAsync16(void* shared, const void* global, bool valid) {
  emulated::CopyLater(shared, global, valid);
}
inline void CopyAsyncCommit() { emulated::CommitCopies(); }
template <int kGroups>
void CopyAsyncWait() {
  emulated::FinishCopies(kGroups);
}

}  // namespace convene::kernels::cuda
