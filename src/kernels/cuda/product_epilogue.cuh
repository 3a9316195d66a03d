// The way of a tile's sums from a warpgroup's registers to the output, through shared memory, so
// that threads side by side write what lies side by side: tokens are rows of the output.
#pragma once

#include <cstdint>

#include "kernels/cuda/device_code.h"
#include "kernels/kernel_set.h"

namespace convene::kernels::cuda {

// Weight rows of a warpgroup's tile; the sums of a token lie at a distance that spreads what a warp
// writes (8 rows of 4 tokens) over all banks.
inline constexpr int kWarpgroupRows = 64;
inline constexpr int kSumsStride = kWarpgroupRows + 4;

struct ProductOutput {
  const float* bias = nullptr;     // or null
  int64_t bias_stride = 0;         // from matrix to matrix
  bool makes_activations = false;  // otherwise floats
  bool is_gated = false;
  bool is_clamped = false;
  bool adds = false;
  EpilogueParameters parameters = {};
  void* out = nullptr;
  int64_t out_stride = 0;
  int columns = 0;
  bool is_aligned = false;  // rows are, to 16 bytes
};

// Sums of the tokens [first, first + kTokens) from all threads' fragments.
template <int kTokens>
__device__ __forceinline__ void StageSums(const float* sums, float* staged) {
  const int thread = threadIdx.x % 128;
  const int row = thread / 32 * 16 + thread % 32 / 4;
  const int token = thread % 4 * 2;
#pragma unroll
  for (int block = 0; block < kTokens / 8; ++block) {
    float* to = staged + (block * 8 + token) * kSumsStride + row;
    to[0] = sums[4 * block];
    to[kSumsStride] = sums[4 * block + 1];
    to[8] = sums[4 * block + 2];
    to[kSumsStride + 8] = sums[4 * block + 3];
  }
}

__device__ __forceinline__ float4 Plus(float4 a, float4 b) {
  return make_float4(a.x + b.x, a.y + b.y, a.z + b.z, a.w + b.w);
}

// Of four rows.
__device__ __forceinline__ float4 BiasAt(const float* bias, int row) {
  if (bias == nullptr) return make_float4(0, 0, 0, 0);
  bias += row;
  return make_float4(__ldg(bias), __ldg(bias + 1), __ldg(bias + 2), __ldg(bias + 3));
}

// Comparisons are written so that NaN stays NaN, as in the reference.
__device__ __forceinline__ float GatedValue(float gate, float up, bool is_clamped,
                                            const EpilogueParameters& parameters) {
  float slope = gate;
  if (is_clamped) {
    const float limit = parameters.limit;
    gate = limit < gate ? limit : gate;
    up = up < -limit ? -limit : limit < up ? limit : up;
    slope = parameters.alpha * gate;
    up += 1.0f;
  }
  return __fdividef(gate, 1.0f + __expf(-slope)) * up;
}

__device__ __forceinline__ void StoreActivations(const ProductOutput& output, int64_t at,
                                                 int column, bool is_whole, float4 low,
                                                 float4 high) {
  Bf16* to = static_cast<Bf16*>(output.out) + at + column;
  const uint4 packed = make_uint4(PackBf16(low.x, low.y), PackBf16(low.z, low.w),
                                  PackBf16(high.x, high.y), PackBf16(high.z, high.w));
  if (is_whole) {
    *reinterpret_cast<uint4*>(to) = packed;
    return;
  }
  const uint32_t pairs[4] = {packed.x, packed.y, packed.z, packed.w};
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    if (column + i >= output.columns) continue;
    to[i] = static_cast<Bf16>(i % 2 == 0 ? pairs[i / 2] & 0xffff : pairs[i / 2] >> 16);
  }
}

// sums(token, row) are those of a tile's weight rows row .. row + 4. A thread has the same columns
// of every so many tokens.
template <typename Sums>
__device__ __forceinline__ void WriteFloats(const ProductOutput& output, const Sums& sums,
                                            const float* bias, int weight_row, int first_row,
                                            int num_rows, int thread, int num_threads) {
  constexpr int kPerToken = kWarpgroupRows / 4;
  const int row = thread % kPerToken * 4;
  const int column = weight_row + row;
  if (column >= output.columns) return;
  const float4 added = BiasAt(bias, row);
  const float scale = output.parameters.scale;
  const bool adds = output.adds;
  const int step = num_threads / kPerToken;
  float* to = static_cast<float*>(output.out) + first_row * output.out_stride + column;
  if (!output.is_aligned || column + 4 > output.columns) {
#pragma unroll 1
    for (int token = thread / kPerToken; token < num_rows; token += step) {
      const float4 sum = Plus(sums(token, row), added);
      const float values[4] = {sum.x * scale, sum.y * scale, sum.z * scale, sum.w * scale};
      float* at = to + token * output.out_stride;
      for (int i = 0; i < 4; ++i) {
        if (column + i < output.columns) at[i] = adds ? at[i] + values[i] : values[i];
      }
    }
    return;
  }
  constexpr int kAtOnce = 4;
#pragma unroll 1
  for (int first = thread / kPerToken; first < num_rows; first += kAtOnce * step) {
    float4 values[kAtOnce];
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      if (first + i * step < num_rows) values[i] = sums(first + i * step, row);
    }
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      if (first + i * step >= num_rows) continue;
      const float4 sum = Plus(values[i], added);
      const float4 value = make_float4(sum.x * scale, sum.y * scale, sum.z * scale, sum.w * scale);
      auto* at = reinterpret_cast<float4*>(to + (first + i * step) * output.out_stride);
      // One addition per output: its order does not matter, and nobody waits for the old value.
      if (adds) {
        atomicAdd(at, value);
      } else {
        *at = value;
      }
    }
  }
}

// The same for eight columns of max(sum, 0).
template <typename Sums>
__device__ __forceinline__ void WriteRelu(const ProductOutput& output, const Sums& sums,
                                          const float* bias, int weight_row, int first_row,
                                          int num_rows, int thread, int num_threads) {
  constexpr int kPerToken = kWarpgroupRows / 8;
  const int row = thread % kPerToken * 8;
  const int column = weight_row + row;
  if (column >= output.columns) return;
  const bool is_whole = output.is_aligned && column + 8 <= output.columns;
  const float4 added[2] = {BiasAt(bias, row), BiasAt(bias, row + 4)};
  for (int token = thread / kPerToken; token < num_rows; token += num_threads / kPerToken) {
    float4 eight[2];
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const float4 sum = Plus(sums(token, row + half * 4), added[half]);
      eight[half] = make_float4(sum.x < 0 ? 0 : sum.x, sum.y < 0 ? 0 : sum.y, sum.z < 0 ? 0 : sum.z,
                                sum.w < 0 ? 0 : sum.w);
    }
    StoreActivations(output, (first_row + token) * output.out_stride, column, is_whole, eight[0],
                     eight[1]);
  }
}

// The same for eight columns, of eight rows of gate and the eight of up behind them.
template <typename Sums>
__device__ __forceinline__ void WriteGated(const ProductOutput& output, const Sums& sums,
                                           const float* bias, int weight_row, int first_row,
                                           int num_rows, int thread, int num_threads) {
  constexpr int kPerToken = kWarpgroupRows / 16;
  const int row = thread % kPerToken * 16;
  const int column = (weight_row + row) / 2;
  if (column >= output.columns) return;
  const bool is_whole = output.is_aligned && column + 8 <= output.columns;
  const float4 added[4] = {BiasAt(bias, row), BiasAt(bias, row + 4), BiasAt(bias, row + 8),
                           BiasAt(bias, row + 12)};
  const bool is_clamped = output.is_clamped;
  for (int token = thread / kPerToken; token < num_rows; token += num_threads / kPerToken) {
    float4 eight[2];
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const float4 gate = Plus(sums(token, row + half * 4), added[half]);
      const float4 up = Plus(sums(token, row + 8 + half * 4), added[2 + half]);
      eight[half] = make_float4(GatedValue(gate.x, up.x, is_clamped, output.parameters),
                                GatedValue(gate.y, up.y, is_clamped, output.parameters),
                                GatedValue(gate.z, up.z, is_clamped, output.parameters),
                                GatedValue(gate.w, up.w, is_clamped, output.parameters));
    }
    StoreActivations(output, (first_row + token) * output.out_stride, column, is_whole, eight[0],
                     eight[1]);
  }
}

// Writes rows [first_row, first_row + num_rows) of the output from sums of the warpgroup's tile
// whose first weight row is weight_row, as one of `num_threads` threads, a multiple of 16.
template <typename Sums>
__device__ __forceinline__ void WriteOutput(const ProductOutput& output, const Sums& sums,
                                            int matrix, int weight_row, int first_row, int num_rows,
                                            int thread, int num_threads) {
  const float* bias = output.bias;
  if (bias != nullptr) bias += matrix * output.bias_stride + weight_row;
  if (!output.makes_activations) {
    WriteFloats(output, sums, bias, weight_row, first_row, num_rows, thread, num_threads);
  } else if (output.is_gated) {
    WriteGated(output, sums, bias, weight_row, first_row, num_rows, thread, num_threads);
  } else {
    WriteRelu(output, sums, bias, weight_row, first_row, num_rows, thread, num_threads);
  }
}

}  // namespace convene::kernels::cuda
