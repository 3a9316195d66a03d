// The kernels of routers' logits.
#include <algorithm>

#include "kernels/cuda/router.cuh"
#include "kernels/cuda/routing.h"
#include "kernels/cuda/row_code.h"

namespace convene::kernels::cuda {
namespace {

// A warp for kRows rows of one output. The rest of its block has the outputs beside it.
template <int kRows, bool kAligned>
__global__ void __launch_bounds__(256, 1) FewRowsKernel(const __grid_constant__ RouterRows rows) {
  LetNextBegin();
  const auto num_warps = static_cast<int>(blockDim.x / 32);
  const int first_output = static_cast<int>(blockIdx.x) * num_warps;
  if (kAligned && blockIdx.y == 0) {
    PrefetchOutputs(rows, first_output, min(first_output + num_warps, rows.num_outputs));
  }
  AwaitPrevious();
  const int output = first_output + WarpIndex();
  const int first_row = static_cast<int>(blockIdx.y) * kRows;
  const float* weights = rows.weights + min(output, rows.num_outputs - 1) * rows.weight_stride;
  const float* x[kRows];
#pragma unroll
  for (int i = 0; i < kRows; ++i) {
    x[i] = rows.x + min(first_row + i, rows.num_rows - 1) * rows.x_stride;
  }
  float sums[kRows] = {};
  AddColumns<kRows, kAligned>(weights, x, rows.size, sums);
#pragma unroll
  for (int i = 0; i < kRows; ++i) {
    const float sum = WarpSum(sums[i]);
    if (LaneIndex() == 0 && output < rows.num_outputs && first_row + i < rows.num_rows) {
      rows.logits[(first_row + i) * rows.logits_stride + output] = WithBias(rows, sum, output);
    }
  }
}

// Many rows: a block makes kTile rows of kTile outputs, a warp kWarpTile of each.
constexpr int kTile = 32;
constexpr int kWarpTile = 8;
constexpr int kTileWarps = kTile / kWarpTile * (kTile / kWarpTile);
constexpr int kTileThreads = 32 * kTileWarps;
constexpr int kStageFloats = 2 * kTile * kRouterStep;  // rows, then outputs
constexpr int kStages = 2;
constexpr size_t kTileShared = sizeof(float) * kStages * kStageFloats;

// Columns [first, first + kRouterStep) of the tile's rows and outputs.
__device__ __forceinline__ void LoadStage(const RouterRows& rows, int first, float* stage) {
  const int first_row = static_cast<int>(blockIdx.x) * kTile;
  const int first_output = static_cast<int>(blockIdx.y) * kTile;
#pragma unroll
  for (int i = 0; i < 2 * kTile / kTileWarps; ++i) {
    const int line = i * kTileWarps + WarpIndex();
    const bool is_output = line >= kTile;
    const int index = is_output ? first_output + line - kTile : first_row + line;
    const int column = first + 4 * LaneIndex();
    const bool valid = column < rows.size && index < (is_output ? rows.num_outputs : rows.num_rows);
    const float* from =
        is_output ? rows.weights + index * rows.weight_stride : rows.x + index * rows.x_stride;
    CopyAsync16(stage + line * kRouterStep + 4 * LaneIndex(), valid ? from + column : rows.x,
                valid);
  }
  CopyAsyncCommit();
}

// The first 2 kHalf of sums[n] of all lanes, added up along WarpSum's tree: a lane gives away half
// of what it has at each level, so that lane l ends with those of 2 l and 2 l + 1.
template <int kHalf>
__device__ __forceinline__ void SumAcrossLanes(float (&sums)[kWarpTile * kWarpTile]) {
  constexpr int kBy = kHalf / 2;  // lanes
  const bool is_upper = (LaneIndex() & kBy) != 0;
#pragma unroll
  for (int i = 0; i < kHalf; ++i) {
    const float mine = is_upper ? sums[i + kHalf] : sums[i];
    const float others = is_upper ? sums[i] : sums[i + kHalf];
    sums[i] = mine + __shfl_xor_sync(kAllLanes, others, kBy);
  }
  if constexpr (kHalf > 2) SumAcrossLanes<kHalf / 2>(sums);
}

__global__ void __launch_bounds__(kTileThreads, 1)
    ManyRowsKernel(const __grid_constant__ RouterRows rows) {
  BeginAfterPrevious();
  auto* stages = reinterpret_cast<float*>(DynamicShared());
  const int warp_row = WarpIndex() / (kTile / kWarpTile) * kWarpTile;
  const int warp_output = WarpIndex() % (kTile / kWarpTile) * kWarpTile;
  const int steps = (rows.size + kRouterStep - 1) / kRouterStep;
  float sums[kWarpTile * kWarpTile] = {};
  LoadStage(rows, 0, stages);
  for (int step = 0; step < steps; ++step) {
    if (step + 1 < steps) {
      LoadStage(rows, (step + 1) * kRouterStep, stages + (step + 1) % kStages * kStageFloats);
      CopyAsyncWait<1>();
    } else {
      CopyAsyncWait<0>();
    }
    __syncthreads();
    const float* stage = stages + step % kStages * kStageFloats + 4 * LaneIndex();
    const float* outputs = stage + (kTile + warp_output) * kRouterStep;
    float4 weights[kWarpTile];
#pragma unroll
    for (int i = 0; i < kWarpTile; ++i) {
      weights[i] = *reinterpret_cast<const float4*>(outputs + i * kRouterStep);
    }
#pragma unroll
    for (int row = 0; row < kWarpTile; ++row) {
      const float4 x = *reinterpret_cast<const float4*>(stage + (warp_row + row) * kRouterStep);
#pragma unroll
      for (int i = 0; i < kWarpTile; ++i) {
        float& sum = sums[row * kWarpTile + i];
        sum = Dot(x, weights[i], sum);
      }
    }
    __syncthreads();
  }
  SumAcrossLanes<kWarpTile * kWarpTile / 2>(sums);
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const int index = 2 * LaneIndex() + i;
    const int row = static_cast<int>(blockIdx.x) * kTile + warp_row + index / kWarpTile;
    const int output = static_cast<int>(blockIdx.y) * kTile + warp_output + index % kWarpTile;
    if (row >= rows.num_rows || output >= rows.num_outputs) continue;
    rows.logits[row * rows.logits_stride + output] = WithBias(rows, sums[i], output);
  }
}

template <int kRows>
void LaunchFewRows(const RouterRows& rows, bool aligned, StreamHandle stream) {
  const unsigned row_groups = Blocks(rows.num_rows, kRows);
  // Of few warps all are to have a multiprocessor of their own; of many, those with the same rows
  // share its cache.
  const unsigned warps = int64_t{row_groups} * rows.num_outputs > 2048 ? 8 : 2;
  Launch(aligned ? FewRowsKernel<kRows, true> : FewRowsKernel<kRows, false>,
         dim3(Blocks(rows.num_outputs, warps), row_groups), dim3(32 * warps), 0, stream, rows);
}

}  // namespace

void RouterLogits(const RouterRows& rows, StreamHandle stream) {
  if (rows.num_rows == 0 || rows.num_outputs == 0) return;
  // From here on tiles fill the device, as 4 rows by 1 output read too much.
  constexpr int64_t kManyLogits = 49152;
  constexpr int kFewRowsAtOnce = 4;
  const bool aligned = AreMultiples(16, rows.weights, rows.x, 4 * rows.size, 4 * rows.weight_stride,
                                    4 * rows.x_stride);
  const bool tiles = aligned && rows.num_outputs > kWarpTile &&
                     int64_t{rows.num_rows} * rows.num_outputs >= kManyLogits;
  // A grid has at most 65535 blocks along y.
  constexpr int kMostRows = 65535 * kFewRowsAtOnce;
  if (tiles) {
    Launch(ManyRowsKernel, dim3(Blocks(rows.num_rows, kTile), Blocks(rows.num_outputs, kTile)),
           dim3(kTileThreads), kTileShared, stream, rows);
  } else if (rows.num_rows == 1) {
    LaunchFewRows<1>(rows, aligned, stream);
  } else {
    for (int first = 0; first < rows.num_rows; first += kMostRows) {
      RouterRows part = rows;
      part.num_rows = std::min(rows.num_rows - first, kMostRows);
      part.x += first * rows.x_stride;
      part.logits += first * rows.logits_stride;
      LaunchFewRows<kFewRowsAtOnce>(part, aligned, stream);
    }
  }
}

}  // namespace convene::kernels::cuda
