// The arithmetic of softmax that all of attention's kernels share, so that a row's result is the
// same bit by bit in whichever of them its spans are folded; and where partial sums lie. Fused
// multiply-adds are written out: the compiler must have no choice. Device code.
#pragma once

#include <cstdint>

#include "kernels/cuda/attention_forms.h"
#include "kernels/cuda/device_code.h"

namespace convene::kernels::cuda {

inline constexpr float kLog2E = 1.44269504088896341f;

__device__ __forceinline__ float NoKeys() { return __uint_as_float(0xff800000u); }  // -infinity

// 2^x; 0 of -infinity, and 1 of 0, exactly.
__device__ __forceinline__ float Exp2(float x) {
#ifdef __CUDACC__
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
#else
  return exp2f(x);
#endif
}

// Sums over some keys are relative to the maximum of their scores. What two of them are multiplied
// with where they become one: a sum over no keys (top = NoKeys()) changes nothing of the other.
struct FoldScales {
  float top;
  float keep;  // of what came before
  float add;   // of what comes
};
__device__ __forceinline__ FoldScales FoldScalesOf(float top_before, float top_added, float scale) {
  const float top = fmaxf(top_before, top_added);
  const float from = top == NoKeys() ? 0.0f : top;
  return {top, Exp2((top_before - from) * scale), Exp2((top_added - from) * scale)};
}
__device__ __forceinline__ float Fold(float before, float added, const FoldScales& scales) {
  return fmaf(added, scales.add, __fmul_rn(before, scales.keep));
}

// What a row's outputs are multiplied with: one over the sum, a sink's share in it.
__device__ __forceinline__ float ShareOf(float top, float sum, float scale, const float* sink) {
  if (sink == nullptr) return ReciprocalOf(sum);
  const float score = __fmul_rn(top, scale);
  const float sunk = __fmul_rn(*sink, kLog2E);
  const float most = fmaxf(score, sunk);
  const float keep = Exp2(score - most);
  return __fmul_rn(keep, ReciprocalOf(fmaf(sum, keep, Exp2(sunk - most))));
}

// What kernels are given.
struct AttentionParameters {
  AttentionShape shape;
  AttentionInputs in;
  float scale = 0;             // of scores, as exponents of 2
  int group = 1;               // heads that share a KV head
  uint32_t inverse_group = 0;  // 2^32 / group, rounded up, where group is more than 1
  bool is_aligned = false;     // 16 bytes of queries, keys and values can be copied at once
  bool writes_pairs = false;   // of outputs
};

// Of a tile's row: its token of the sequence's rows, and its head.
struct TileRow {
  int token;
  int head;
};
__device__ __forceinline__ TileRow TileRowOf(const AttentionParameters& p,
                                             const AttentionWork& work, int row) {
  const int in_sequence = work.first_row + row;
  // Exact, as in_sequence * group is below 2^32 (PlanAttention sees to it).
  const int token =
      p.group == 1
          ? in_sequence
          : static_cast<int>(uint64_t{static_cast<uint32_t>(in_sequence)} * p.inverse_group >> 32);
  return {token, work.kv_head * p.group + in_sequence - token * p.group};
}

// at(i): the row's outputs column(i) and column(i) + 1, before they are multiplied with `share`.
template <int kCount, typename Column, typename At>
__device__ __forceinline__ void WriteRow(const AttentionParameters& p, const QueryRows& rows,
                                         const TileRow& row, float share, const Column& column,
                                         const At& at) {
  const int dim = p.shape.value_dim;
  Bf16* out = p.in.out + (int64_t{rows.first_out_row} + row.token) * p.in.out_stride +
              int64_t{row.head} * dim;
  const auto pair = [&](int i) {
    const float2 sums = at(i);
    return PackBf16(__fmul_rn(sums.x, share), __fmul_rn(sums.y, share));
  };
  if (p.writes_pairs) {
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      if (column(i) < dim) *reinterpret_cast<uint32_t*>(out + column(i)) = pair(i);
    }
  } else {
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      const uint32_t both = pair(i);
      if (column(i) < dim) out[column(i)] = static_cast<Bf16>(both & 0xffff);
      if (column(i) + 1 < dim) out[column(i) + 1] = static_cast<Bf16>(both >> 16);
    }
  }
}

// Partial sums of a tile: (maximum, sum) of its rows, then pairs of outputs, for each warp `slots`
// times one of each lane. Slot and lane say row and column as the accumulators of MmaBf16 do.
template <int kForm, bool kLarge>
struct PartialSums {
  static constexpr AttentionForm kSizes = kAttentionForms[kForm];
  static constexpr AttentionTile kTile = kSizes.tile(kLarge);
  static constexpr int kWarpRows = kTile.rows_of_warp();
  static constexpr int kColumns = kSizes.value_dim / kTile.column_warps;  // of a warp
  static constexpr int kColumnTiles = kColumns / 8;
  static constexpr int kSlots = kTile.row_tiles * kColumnTiles * 2;

  static __device__ __forceinline__ int Slot(int row_tile, int column_tile, int half) {
    return (row_tile * kColumnTiles + column_tile) * 2 + half;
  }
  // Of a row warp's rows.
  static __device__ __forceinline__ int RowOf(int slot, int lane) {
    return slot / (2 * kColumnTiles) * 16 + slot % 2 * 8 + lane / 4;
  }
  // Of a column warp's columns.
  static __device__ __forceinline__ int ColumnOf(int slot, int lane) {
    return slot / 2 % kColumnTiles * 8 + lane % 4 * 2;
  }

  __device__ __forceinline__ PartialSums(float* partials, const AttentionWork& work, int span) {
    // As PartialFloats of attention_forms.h.
    const int num_rows = (work.num_rows + kWarpRows - 1) / kWarpRows * kWarpRows;
    data = reinterpret_cast<float2*>(partials + int64_t{work.partial} * kPartialUnit +
                                     int64_t{span} * num_rows * (kSizes.value_dim + 2));
    values = data + num_rows;
  }
  __device__ __forceinline__ float2& StatisticsOf(int row) const { return data[row]; }
  __device__ __forceinline__ float2& Pair(int warp, int slot, int lane) const {
    return values[(warp * kSlots + slot) * 32 + lane];
  }

  float2* data;
  float2* values;
};

}  // namespace convene::kernels::cuda
