// What kernels over rows share: sums over a warp or a block whose order is fixed, and loads of a
// few elements of a row of any length. Device code, for sources of kernels alone.
#pragma once

#include <cstdint>
#include <type_traits>

#include "kernels/cuda/device_code.h"

namespace convene::kernels::cuda {

inline constexpr unsigned kAllLanes = 0xffffffff;

__device__ __forceinline__ int LaneIndex() { return static_cast<int>(threadIdx.x % 32); }
__device__ __forceinline__ int WarpIndex() { return static_cast<int>(threadIdx.x / 32); }

// The same in all lanes, bit by bit.
__device__ __forceinline__ float WarpSum(float value) {
#pragma unroll
  for (int by = 16; by > 0; by /= 2) value += __shfl_xor_sync(kAllLanes, value, by);
  return value;
}

// The same in all threads of a block of whole warps. `of_warps` (32) is shared memory that nothing
// else uses until the next barrier.
__device__ __forceinline__ float BlockSum(float value, float* of_warps) {
  value = WarpSum(value);
  if (LaneIndex() == 0) of_warps[WarpIndex()] = value;
  __syncthreads();
  const int num_warps = static_cast<int>(blockDim.x / 32);
  return WarpSum(LaneIndex() < num_warps ? of_warps[LaneIndex()] : 0.0f);
}

__device__ __forceinline__ float FloatOf(Bf16 bits) {
  return __uint_as_float(static_cast<uint32_t>(bits) << 16);
}
__device__ __forceinline__ Bf16 Bf16Of(float value) {
  return static_cast<Bf16>(PackBf16(value, 0.0f) & 0xffff);
}

// Ordered as the values are, -0 as 0; more than 1, which NaN becomes: 0 may stand for none.
__device__ __forceinline__ uint32_t OrderedBits(float value) {
  if (!(value == value)) return 1;
  const uint32_t bits = __float_as_uint(value + 0.0f);
  return (bits & 0x80000000u) != 0 ? ~bits : bits | 0x80000000u;
}

// Of what the blocks of a grid do together: whether this one is the last to come here, so that it
// sees what all of them wrote before. By all threads of a block; `count` is 0 before the grid and
// after it, `is_last` shared memory.
__device__ __forceinline__ bool IsLastOf(int num_blocks, int32_t* count, bool* is_last) {
  __threadfence();
  __syncthreads();
  if (threadIdx.x == 0) {
    *is_last = atomicAdd(count, 1) + 1 == num_blocks;
    if (*is_last) *count = 0;
    __threadfence();
  }
  __syncthreads();
  return *is_last;
}

// By the threads of `num_blocks` blocks, of which this is one: bytes to the L2 cache.
__device__ __forceinline__ void PrefetchToL2(const std::byte* from, int64_t bytes, int block,
                                             int num_blocks) {
  constexpr int64_t kPiece = 2 << 10;
  const int64_t step = int64_t{num_blocks} * blockDim.x * kPiece;
  for (int64_t at = (int64_t{block} * blockDim.x + threadIdx.x) * kPiece; at < bytes; at += step) {
    PrefetchToL2(from + at, static_cast<unsigned>(min(kPiece, bytes - at)));
  }
}

// Elements [first, first + 4) and [first, first + 2) of a row of `size`, zeros beyond its end.
// Aligned: all rows begin at a multiple of so many elements and are as long.
template <bool kAligned>
__device__ __forceinline__ float4 LoadQuad(const float* row, int first, int size) {
  if constexpr (kAligned) {
    if (first >= size) return make_float4(0, 0, 0, 0);
    return *reinterpret_cast<const float4*>(row + first);
  } else {
    return make_float4(first < size ? row[first] : 0.0f, first + 1 < size ? row[first + 1] : 0.0f,
                       first + 2 < size ? row[first + 2] : 0.0f,
                       first + 3 < size ? row[first + 3] : 0.0f);
  }
}
template <bool kAligned>
__device__ __forceinline__ float2 LoadPair(const float* row, int first, int size) {
  if constexpr (kAligned) {
    if (first >= size) return make_float2(0, 0);
    return *reinterpret_cast<const float2*>(row + first);
  } else {
    return make_float2(first < size ? row[first] : 0.0f, first + 1 < size ? row[first + 1] : 0.0f);
  }
}

// Whether all of these addresses, strides and sizes, in bytes, are multiples of `bytes`.
template <typename... Values>
bool AreMultiples(int bytes, Values... values) {
  const auto as_bits = [](auto value) {
    if constexpr (std::is_pointer_v<decltype(value)>) {
      return reinterpret_cast<uintptr_t>(value);
    } else {
      return static_cast<uintptr_t>(value);
    }
  };
  return ((as_bits(values) % static_cast<uintptr_t>(bytes) == 0) && ...);
}

constexpr unsigned Blocks(int64_t work, int64_t per_block) {
  return static_cast<unsigned>((work + per_block - 1) / per_block);
}

}  // namespace convene::kernels::cuda
