#include <algorithm>

#include "kernels/cuda/device_code.h"
#include "kernels/cuda/normalize.cuh"
#include "kernels/cuda/require.h"
#include "kernels/cuda/row_code.h"
#include "kernels/cuda/rows.h"

namespace convene::kernels::cuda {
namespace {

template <bool kAligned>
__global__ void __launch_bounds__(256) EmbedKernel(const __grid_constant__ EmbedRows rows) {
  BeginAfterPrevious();
  const int64_t row = blockIdx.x;
  const Bf16* from = rows.table + rows.tokens[row] * rows.table_stride;
  float* to = rows.out + row * rows.out_stride;
  if constexpr (kAligned) {
    for (auto i = static_cast<int>(8 * threadIdx.x); i < rows.size; i += 8 * 256) {
      const uint4 bits = *reinterpret_cast<const uint4*>(from + i);
      const auto two = [&](uint32_t low, uint32_t high) {
        return make_float4(rows.scale * LowOfBf16(low), rows.scale * HighOfBf16(low),
                           rows.scale * LowOfBf16(high), rows.scale * HighOfBf16(high));
      };
      *reinterpret_cast<float4*>(to + i) = two(bits.x, bits.y);
      *reinterpret_cast<float4*>(to + i + 4) = two(bits.z, bits.w);
    }
  } else {
    for (auto i = static_cast<int>(threadIdx.x); i < rows.size; i += 256) {
      to[i] = rows.scale * FloatOf(from[i]);
    }
  }
}

template <int kQuads, bool kAligned>
__global__ void __launch_bounds__(NormThreads(kQuads))
    NormalizeKernel(const __grid_constant__ NormRows rows) {
  BeginAfterPrevious();
  __shared__ NormMemory memory;
  const int64_t row = blockIdx.x;
  const float* x = rows.x + row * rows.x_stride;
  NormalizeRow<kQuads, kAligned>(
      rows, memory, [&](int first) { return LoadQuad<kAligned>(x, first, rows.size); },
      [&](int first, float4 quad) { StoreNormed<kAligned>(rows, row, first, quad); });
  PadNormed(rows, row);
}

// A thread for each 16 bytes of a row.
__global__ void __launch_bounds__(256) CopyKernel(const __grid_constant__ CopyRows rows) {
  BeginAfterPrevious();
  const auto per_row = static_cast<uint32_t>(rows.bytes / 16);
  const uint32_t index = blockIdx.x * 256 + threadIdx.x;
  const int64_t row = index / per_row;
  if (row >= rows.num_rows) return;
  const int64_t at = int64_t{index % per_row} * 16;
  const int64_t from = rows.from != nullptr ? rows.from[row] : row;
  *reinterpret_cast<uint4*>(static_cast<std::byte*>(rows.out) + row * rows.out_stride + at) =
      *reinterpret_cast<const uint4*>(static_cast<const std::byte*>(rows.x) + from * rows.x_stride +
                                      at);
}

// Within the same rows: a thread for each 16 bytes, which takes the rows in their order, so that
// none is read after it was written.
__global__ void __launch_bounds__(32) CopyInOrderKernel(const __grid_constant__ CopyRows rows) {
  BeginAfterPrevious();
  constexpr int kBatch = 16;
  const int64_t at = (int64_t{blockIdx.x} * 32 + threadIdx.x) * 16;
  if (at >= rows.bytes) return;
  const auto* x = static_cast<const std::byte*>(rows.x) + at;
  auto* out = static_cast<std::byte*>(rows.out) + at;
  for (int first = 0; first < rows.num_rows; first += kBatch) {
    uint4 batch[kBatch];
#pragma unroll
    for (int i = 0; i < kBatch; ++i) {
      if (first + i >= rows.num_rows) break;
      batch[i] = *reinterpret_cast<const uint4*>(x + rows.from[first + i] * rows.x_stride);
    }
#pragma unroll
    for (int i = 0; i < kBatch; ++i) {
      if (first + i >= rows.num_rows) break;
      *reinterpret_cast<uint4*>(out + (first + i) * rows.out_stride) = batch[i];
    }
  }
}

__device__ __forceinline__ bool IsFinite(float x) {
  return (__float_as_uint(x) & 0x7f800000u) != 0x7f800000u;
}

template <bool kAligned>
__global__ void __launch_bounds__(256)
    LookForNotFiniteKernel(const float* x, int64_t stride, int size, int32_t* all_finite) {
  BeginAfterPrevious();
  const float* row = x + blockIdx.x * stride;
  bool finite = true;
  const auto step = static_cast<int>(4 * 256 * gridDim.y);
  for (auto i = static_cast<int>(4 * (blockIdx.y * 256 + threadIdx.x)); i < size; i += step) {
    const float4 quad = LoadQuad<kAligned>(row, i, size);
    finite &= IsFinite(quad.x) & IsFinite(quad.y) & IsFinite(quad.z) & IsFinite(quad.w);
  }
  if (!finite) *all_finite = 0;
}

// Elements of a part of a row, which a block takes together.
constexpr int kPerLargest = 8 * 4 * 256;

template <bool kAligned>
__global__ void __launch_bounds__(256) FindLargestKernel(const __grid_constant__ LargestRows rows) {
  BeginAfterPrevious();
  const float* row = rows.x + blockIdx.x * rows.stride;
  const auto begin = static_cast<int>(blockIdx.y) * kPerLargest;
  const int end = min(begin + kPerLargest, rows.size);
  uint32_t best = 0;
  int at = 0;
  bool finite = true;
  for (int i = begin + static_cast<int>(4 * threadIdx.x); i < end; i += 4 * 256) {
    const float4 quad = LoadQuad<kAligned>(row, i, rows.size);
    const float values[4] = {quad.x, quad.y, quad.z, quad.w};
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      if (i + j >= end) continue;
      finite &= IsFinite(values[j]);
      const uint32_t bits = OrderedBits(values[j]);
      if (bits > best) {
        best = bits;
        at = i + j;
      }
    }
  }
  const uint32_t largest = __reduce_max_sync(kAllLanes, best);
  const int lowest = __reduce_min_sync(kAllLanes, best == largest ? at : INT32_MAX);
  const bool all_finite = __all_sync(kAllLanes, finite) != 0;
  if (LaneIndex() != 0) return;
  const unsigned long long key =
      all_finite ? static_cast<unsigned long long>(largest) << 32 | (0xffffffffu - lowest)
                 : kNotFiniteKey;
  atomicMax(rows.keys + blockIdx.x, key);
}

// A hash of the element's number (Steele et al., "Fast splittable pseudorandom number generators",
// 2014): 32 bits make two uniform values.
__device__ __forceinline__ uint32_t RandomBits(uint64_t number) {
  number *= 0x9e3779b97f4a7c15u;
  number = (number ^ (number >> 30)) * 0xbf58476d1ce4e5b9u;
  number = (number ^ (number >> 27)) * 0x94d049bb133111ebu;
  return static_cast<uint32_t>(number >> 32);
}

__global__ void __launch_bounds__(256)
    FillRandomKernel(Bf16* to, int64_t count, uint64_t seed, float scale) {
  BeginAfterPrevious();
  // Of a uniform value in [-1, 1) to have variance 1.
  constexpr float kRoot3 = 1.7320508f;
  const float by = scale * kRoot3 / 32768;
  const int64_t step = int64_t{256} * gridDim.x;
  for (int64_t i = int64_t{blockIdx.x} * 256 + threadIdx.x; 2 * i < count; i += step) {
    const uint32_t bits = RandomBits(seed * 0x2545f4914f6cdd1du + static_cast<uint64_t>(i) + 1);
    const uint32_t pair = PackBf16(by * static_cast<float>(static_cast<int16_t>(bits & 0xffff)),
                                   by * static_cast<float>(static_cast<int16_t>(bits >> 16)));
    if (2 * i + 1 < count) {
      reinterpret_cast<uint32_t*>(to)[i] = pair;
    } else {
      to[2 * i] = static_cast<Bf16>(pair & 0xffff);
    }
  }
}

}  // namespace

void Embed(const EmbedRows& rows, StreamHandle stream) {
  if (rows.num_rows == 0) return;
  const bool aligned = AreMultiples(16, rows.table, rows.out, 2 * rows.size, 2 * rows.table_stride,
                                    4 * rows.out_stride);
  Launch(aligned ? EmbedKernel<true> : EmbedKernel<false>,
         dim3(static_cast<unsigned>(rows.num_rows)), dim3(256), 0, stream, rows);
}

void Normalize(const NormRows& rows, StreamHandle stream) {
  if (rows.num_rows == 0) return;
  WithNormQuads(rows.size, [&](auto quads) {
    constexpr int kQuads = decltype(quads)::value;
    Launch(AreAligned(rows) ? NormalizeKernel<kQuads, true> : NormalizeKernel<kQuads, false>,
           dim3(static_cast<unsigned>(rows.num_rows)), dim3(NormThreadsOf(rows.size, kQuads)), 0,
           stream, rows);
  });
}

void Copy(const CopyRows& rows, StreamHandle stream) {
  if (rows.num_rows == 0 || rows.bytes == 0) return;
  Require(AreMultiples(16, rows.x, rows.out, rows.x_stride, rows.out_stride, rows.bytes),
          "rows that are no multiples of 16 bytes");
  if (rows.x == rows.out) {
    if (rows.from == nullptr) return;
    Launch(CopyInOrderKernel, dim3(Blocks(rows.bytes / 16, 32)), dim3(32), 0, stream, rows);
    return;
  }
  Require(rows.num_rows * (rows.bytes / 16) < int64_t{1} << 31, "a copy of more than 32 GiB");
  Launch(CopyKernel, dim3(Blocks(rows.num_rows * (rows.bytes / 16), 256)), dim3(256), 0, stream,
         rows);
}

void LookForNotFinite(const float* x, int64_t stride, int num_rows, int size, int32_t* all_finite,
                      StreamHandle stream) {
  if (num_rows == 0 || size == 0) return;
  constexpr int kPerBlock = 8 * 4 * 256;  // elements
  const bool aligned = AreMultiples(16, x, 4 * stride, 4 * size);
  Launch(aligned ? LookForNotFiniteKernel<true> : LookForNotFiniteKernel<false>,
         dim3(static_cast<unsigned>(num_rows), Blocks(size, kPerBlock)), dim3(256), 0, stream, x,
         stride, size, all_finite);
}

void FindLargest(const LargestRows& rows, StreamHandle stream) {
  if (rows.num_rows == 0) return;
  const bool aligned = AreMultiples(16, rows.x, 4 * rows.stride, 4 * rows.size);
  Launch(aligned ? FindLargestKernel<true> : FindLargestKernel<false>,
         dim3(static_cast<unsigned>(rows.num_rows), Blocks(rows.size, kPerLargest)), dim3(256), 0,
         stream, rows);
}

void FillRandom(Bf16* to, int64_t count, uint64_t seed, float scale, StreamHandle stream) {
  if (count == 0) return;
  const auto blocks = std::min(Blocks(count, 2 * 256), 4096u);
  Launch(FillRandomKernel, dim3(blocks), dim3(256), 0, stream, to, count, seed, scale);
}

}  // namespace convene::kernels::cuda
