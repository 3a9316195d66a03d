// The norm of a row by one block, whose order of sums is a matter of the row's size alone: so it is
// the same in all kernels that norm rows. Device code.
#pragma once

#include <type_traits>

#include "kernels/cuda/device_code.h"
#include "kernels/cuda/require.h"
#include "kernels/cuda/row_code.h"
#include "kernels/cuda/rows.h"

namespace convene::kernels::cuda {

__device__ __forceinline__ float SumOfSquares(float4 x, float4 keep, float mean, float sum) {
  const float a = keep.x * (x.x - mean);
  const float b = keep.y * (x.y - mean);
  const float c = keep.z * (x.z - mean);
  const float d = keep.w * (x.w - mean);
  return fmaf(d, d, fmaf(c, c, fmaf(b, b, fmaf(a, a, sum))));
}

// 1 where an element is in the row.
__device__ __forceinline__ float4 InRow(int first, int size) {
  return make_float4(first < size, first + 1 < size, first + 2 < size, first + 3 < size);
}

// A row stays in registers: thread t has quads t, t + blockDim.x and so on, kQuads of them.
constexpr int NormThreads(int quads) { return quads <= 2 ? 256 : 512; }
inline unsigned NormThreadsOf(int size, int quads) {
  return 32 * Blocks(Blocks(size, 4), int64_t{quads} * 32);
}
// Calls `launch` with the quads of a thread as a constant.
template <typename LaunchOf>
void WithNormQuads(int size, const LaunchOf& launch) {
  Require(size <= kMaxNormSize, "a norm of too many elements");
  if (size <= 1024) {
    launch(std::integral_constant<int, 1>());
  } else if (size <= 2048) {
    launch(std::integral_constant<int, 2>());
  } else if (size <= 8192) {
    launch(std::integral_constant<int, 4>());
  } else {
    launch(std::integral_constant<int, 8>());
  }
}
// Whether rows can be read and written in quads; the order of a row's sum is the same either way.
inline bool AreAligned(const NormRows& rows) {
  return AreMultiples(16, rows.weight, rows.x, rows.out_float, 4 * rows.size, 4 * rows.x_stride,
                      4 * rows.out_float_stride) &&
         AreMultiples(8, rows.out, 2 * rows.out_stride);
}

// Shared memory of a block that norms.
using NormMemory = float[2][32];

// x(first): the row's elements first .. first + 4, asked for once. pass(first, quad) gets what they
// become, of those that are in the row.
template <int kQuads, bool kAligned, typename X, typename Pass>
__device__ __forceinline__ void NormalizeRow(const NormRows& rows, NormMemory& memory, const X& x,
                                             const Pass& pass) {
  const auto first = [](int quad) {
    return static_cast<int>(4 * (threadIdx.x + quad * blockDim.x));
  };
  float4 values[kQuads];
  float4 weights[kQuads];
#pragma unroll
  for (int i = 0; i < kQuads; ++i) {
    weights[i] = LoadQuad<kAligned>(rows.weight, first(i), rows.size);
    values[i] = x(first(i));
  }

  float mean = 0;
  if (rows.kind == NormKind::kLayer) {
    float sum = 0;
#pragma unroll
    for (int i = 0; i < kQuads; ++i) {
      sum += (values[i].x + values[i].y) + (values[i].z + values[i].w);
    }
    mean = BlockSum(sum, memory[1]) / static_cast<float>(rows.size);
  }
  float squares = 0;
#pragma unroll
  for (int i = 0; i < kQuads; ++i) {
    squares = SumOfSquares(values[i], InRow(first(i), rows.size), mean, squares);
  }
  squares = BlockSum(squares, memory[0]);
  const float scale = 1 / sqrtf(squares / static_cast<float>(rows.size) + rows.epsilon);

#pragma unroll
  for (int i = 0; i < kQuads; ++i) {
    if (first(i) >= rows.size) break;
    pass(first(i), make_float4((values[i].x - mean) * scale * weights[i].x,
                               (values[i].y - mean) * scale * weights[i].y,
                               (values[i].z - mean) * scale * weights[i].z,
                               (values[i].w - mean) * scale * weights[i].w));
  }
}

// Elements first .. first + 4 of a row's norm to where they are wanted.
template <bool kAligned>
__device__ __forceinline__ void StoreNormed(const NormRows& rows, int64_t row, int first,
                                            float4 quad) {
  const float out[4] = {quad.x, quad.y, quad.z, quad.w};
  if (rows.out != nullptr) {
    Bf16* to = rows.out + row * rows.out_stride + first;
    if constexpr (kAligned) {
      *reinterpret_cast<uint2*>(to) =
          make_uint2(PackBf16(out[0], out[1]), PackBf16(out[2], out[3]));
    } else {
      for (int j = 0; j < 4 && first + j < rows.size; ++j) to[j] = Bf16Of(out[j]);
    }
  }
  if (rows.out_float != nullptr) {
    float* to = rows.out_float + row * rows.out_float_stride + first;
    if constexpr (kAligned) {
      *reinterpret_cast<float4*>(to) = quad;
    } else {
      for (int j = 0; j < 4 && first + j < rows.size; ++j) to[j] = out[j];
    }
  }
}

// What follows the row's last element.
__device__ __forceinline__ void PadNormed(const NormRows& rows, int64_t row) {
  if (rows.out == nullptr) return;
  constexpr int kPadding = kDepthPadding;
  const int padded = (rows.size + kPadding - 1) / kPadding * kPadding;
  for (auto i = static_cast<int>(rows.size + threadIdx.x); i < padded;
       i += static_cast<int>(blockDim.x)) {
    rows.out[row * rows.out_stride + i] = 0;
  }
}

}  // namespace convene::kernels::cuda
