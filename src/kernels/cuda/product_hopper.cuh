// Instructions of Hopper that the products are made of: barriers in shared memory, copies of boxes
// of a matrix by the tensor memory accelerator (TMA), clusters, and the warpgroup's matrix product.
#pragma once

#include <cuda.h>

#include <cstdint>

#include "kernels/cuda/device_code.h"
#include "kernels/cuda/product_wgmma.cuh"

namespace convene::kernels::cuda {

// A row of a box in shared memory: so many columns of bf16, 128 bytes, the swizzle's width.
inline constexpr int kBoxColumns = 64;
inline constexpr int kBoxRowBytes = kBoxColumns * 2;
// The swizzle's pattern repeats after 8 rows, so boxes begin at multiples of that.
inline constexpr int kSwizzleBytes = 8 * kBoxRowBytes;

__device__ __forceinline__ void InitBarrier(uint32_t barrier, int arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;\n" ::"r"(barrier), "r"(arrivals)
               : "memory");
}
// Makes barriers that this thread has made known to the TMA and to the other blocks of the cluster.
__device__ __forceinline__ void PublishBarriers() {
  asm volatile("fence.mbarrier_init.release.cluster;\n" ::: "memory");
  asm volatile("fence.proxy.async.shared::cta;\n" ::: "memory");
}
// Waits until the phase of this parity is complete; before the first phase, that of parity 1 is.
__device__ __forceinline__ void WaitForBarrier(uint32_t barrier, uint32_t parity) {
  asm volatile(
      "{\n"
      ".reg .pred done;\n"
      "again:\n"
      "mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
      "@done bra finished;\n"
      "bra again;\n"
      "finished:\n"
      "}\n" ::"r"(barrier),
      "r"(parity)
      : "memory");
}
__device__ __forceinline__ void ArriveAndExpect(uint32_t barrier, uint32_t bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;\n" ::"r"(barrier), "r"(bytes)
               : "memory");
}
__device__ __forceinline__ void Arrive(uint32_t barrier) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];\n" ::"r"(barrier) : "memory");
}
// At the barrier in the same place of another block of the cluster. It tells of what the tensor
// cores have read, not of anything written: with .release.cluster every arrival would wait for all
// that the thread has stored.
__device__ __forceinline__ void ArriveAt(uint32_t barrier, uint32_t block) {
  asm volatile(
      "{\n"
      ".reg .b32 remote;\n"
      "mapa.shared::cluster.u32 remote, %0, %1;\n"
      "mbarrier.arrive.shared::cluster.b64 _, [remote];\n"
      "}\n" ::"r"(barrier),
      "r"(block)
      : "memory");
}

__device__ __forceinline__ uint32_t BlockOfCluster() {
  uint32_t rank;
  asm volatile("mov.u32 %0, %%cluster_ctarank;\n" : "=r"(rank));
  return rank;
}
// All threads of all blocks of the cluster; what they wrote to shared memory before is then seen.
__device__ __forceinline__ void SynchronizeCluster() {
  __syncwarp();
  asm volatile("barrier.cluster.arrive.release.aligned;\n" ::: "memory");
  asm volatile("barrier.cluster.wait.acquire.aligned;\n" ::: "memory");
}
// The same where nothing that was written need be seen, but what was read has been used: so it does
// not wait for what threads have stored.
__device__ __forceinline__ void SynchronizeReaders() {
  __syncwarp();
  asm volatile("barrier.cluster.arrive.relaxed.aligned;\n" ::: "memory");
  asm volatile("barrier.cluster.wait.acquire.aligned;\n" ::: "memory");
}
// Four floats from the same place of another block's shared memory.
__device__ __forceinline__ float4 LoadFromBlock(uint32_t shared, uint32_t block) {
  float4 value;
  asm volatile(
      "{\n"
      ".reg .b32 remote;\n"
      "mapa.shared::cluster.u32 remote, %4, %5;\n"
      "ld.shared::cluster.v4.f32 {%0, %1, %2, %3}, [remote];\n"
      "}\n"
      : "=f"(value.x), "=f"(value.y), "=f"(value.z), "=f"(value.w)
      : "r"(shared), "r"(block)
      : "memory");
  return value;
}

// What the L2 cache does with what is loaded, as createpolicy encodes it.
inline constexpr uint64_t kKeepAsUsual = 0x1000000000000000;
inline constexpr uint64_t kEvictFirst = 0x12F0000000000000;

__device__ __forceinline__ void PrefetchMap(const CUtensorMap* map) {
  asm volatile("prefetch.tensormap [%0];\n" ::"l"(reinterpret_cast<uint64_t>(map)) : "memory");
}
// A box at (column, row, matrix). What lies outside of the matrix becomes zero, and counts.
__device__ __forceinline__ void LoadBox(uint32_t to, const CUtensorMap* map, int column, int row,
                                        int matrix, uint32_t barrier, uint64_t policy) {
  asm volatile(
      "cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes"
      ".L2::cache_hint [%0], [%1, {%3, %4, %5}], [%2], %6;\n" ::"r"(to),
      "l"(reinterpret_cast<uint64_t>(map)), "r"(barrier), "r"(column), "r"(row), "r"(matrix),
      "l"(policy)
      : "memory");
}
__device__ __forceinline__ void LoadBox(uint32_t to, const CUtensorMap* map, int column, int row,
                                        uint32_t barrier) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes"
      " [%0], [%1, {%3, %4}], [%2];\n" ::"r"(to),
      "l"(reinterpret_cast<uint64_t>(map)), "r"(barrier), "r"(column), "r"(row)
      : "memory");
}
// To the same place of all blocks of the mask, and told to their barriers.
__device__ __forceinline__ void LoadBoxForAll(uint32_t to, const CUtensorMap* map, int column,
                                              int row, uint32_t barrier, uint16_t mask) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes"
      ".multicast::cluster [%0], [%1, {%3, %4}], [%2], %5;\n" ::"r"(to),
      "l"(reinterpret_cast<uint64_t>(map)), "r"(barrier), "r"(column), "r"(row), "h"(mask)
      : "memory");
}

// An operand of wgmma at an address of shared memory (a multiple of kSwizzleBytes) whose rows lie
// along the depth: bits 0-13 the address, 16-29 unused with a swizzle, 32-45 the bytes from 8 rows
// to the next 8, all in units of 16 bytes; 62-63 the swizzle, 1 for 128 bytes. 16 columns further
// is 32 bytes further: the hardware swizzles addresses, not places in the tile.
__device__ __forceinline__ uint64_t OperandAt(uint32_t shared) {
  return uint64_t{(shared & 0x3FFFF) >> 4} | uint64_t{1} << 16 |
         uint64_t{kSwizzleBytes >> 4} << 32 | uint64_t{1} << 62;
}
inline constexpr int kOperandStep = 16 * 2 >> 4;

__device__ __forceinline__ void BeginProducts() {
  asm volatile("wgmma.fence.sync.aligned;\n" ::: "memory");
}
__device__ __forceinline__ void CommitProducts() {
  asm volatile("wgmma.commit_group.sync.aligned;\n" ::: "memory");
}
// Waits until at most kGroups of the latest groups are under way.
template <int kGroups>
__device__ __forceinline__ void WaitForProducts() {
  asm volatile("wgmma.wait_group.sync.aligned %0;\n" ::"n"(kGroups) : "memory");
}

// Of a warpgroup, all of whose warps run this.
template <int kRegisters>
__device__ __forceinline__ void GiveRegistersBack() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;\n" ::"n"(kRegisters));
}
template <int kRegisters>
__device__ __forceinline__ void TakeRegisters() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;\n" ::"n"(kRegisters));
}

// The threads of one warpgroup; barrier 0 is __syncthreads'.
__device__ __forceinline__ void SynchronizeWarpgroup(int warpgroup) {
  __syncwarp();
  asm volatile("bar.sync %0, 128;\n" ::"r"(warpgroup + 1) : "memory");
}

}  // namespace convene::kernels::cuda
