// Logits of routers: products in float32, since experts are chosen by them. Of an output, lane l
// sums columns 4 l .. 4 l + 3 of every 128 in one chain, and lanes meet in one tree: so it is the
// same, bit by bit, whichever kernel makes it. Device code.
#pragma once

#include "kernels/cuda/device_code.h"
#include "kernels/cuda/routing.h"
#include "kernels/cuda/row_code.h"

namespace convene::kernels::cuda {

inline constexpr int kRouterStep = 128;  // columns

__device__ __forceinline__ float Dot(float4 a, float4 b, float sum) {
  return fmaf(a.w, b.w, fmaf(a.z, b.z, fmaf(a.y, b.y, fmaf(a.x, b.x, sum))));
}

__device__ __forceinline__ float WithBias(const RouterRows& rows, float sum, int output) {
  return rows.bias != nullptr ? sum + rows.bias[output] : sum;
}

// A block's outputs' weights, while the kernel before this one still runs. Rows of weights are a
// multiple of 16 bytes long.
__device__ __forceinline__ void PrefetchOutputs(const RouterRows& rows, int first, int end) {
  PrefetchToL2(reinterpret_cast<const std::byte*>(rows.weights + first * rows.weight_stride),
               (end - first) * rows.weight_stride * int64_t{sizeof(float)}, 0, 1);
}

// kSteps steps of columns from `first` on, those before `end`; of several steps all are.
template <int kRows, int kSteps, bool kAligned>
__device__ __forceinline__ void AddSteps(const float* weights, const float* const (&x)[kRows],
                                         int first, int end, float (&sums)[kRows]) {
  const auto load = [&](const float* row, int step) {
    const int at = first + step * kRouterStep + 4 * LaneIndex();
    return LoadQuad<kAligned>(row, at, kSteps > 1 ? at + 4 : end);
  };
  float4 weight[kSteps];
  float4 values[kSteps][kRows];
#pragma unroll
  for (int step = 0; step < kSteps; ++step) {
    weight[step] = load(weights, step);
#pragma unroll
    for (int i = 0; i < kRows; ++i) values[step][i] = load(x[i], step);
  }
#pragma unroll
  for (int step = 0; step < kSteps; ++step) {
#pragma unroll
    for (int i = 0; i < kRows; ++i) sums[i] = Dot(values[step][i], weight[step], sums[i]);
  }
}

// What a lane has of kRows rows' product with one output's weights.
template <int kRows, bool kAligned>
__device__ __forceinline__ void AddColumns(const float* weights, const float* const (&x)[kRows],
                                           int size, float (&sums)[kRows]) {
  // So many steps' loads are under way at once.
  constexpr int kBatch = kRows == 1 ? 8 : 4;
  int first = 0;
  for (; first + kBatch * kRouterStep <= size; first += kBatch * kRouterStep) {
    AddSteps<kRows, kBatch, kAligned>(weights, x, first, first + kBatch * kRouterStep, sums);
  }
  for (; first < size; first += kRouterStep) {
    AddSteps<kRows, 1, kAligned>(weights, x, first, size, sums);
  }
}

}  // namespace convene::kernels::cuda
