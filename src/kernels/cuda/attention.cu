// Attention's kernels: tiles of rows against spans of keys, and the fold of what was computed
// apart.
#include <algorithm>

#include "kernels/cuda/attention.h"
#include "kernels/cuda/attention_fold.cuh"
#include "kernels/cuda/attention_forms.h"
#include "kernels/cuda/attention_tile.cuh"
#include "kernels/cuda/device_code.h"
#include "kernels/cuda/require.h"
#include "kernels/cuda/row_code.h"

namespace convene::kernels::cuda {
namespace {

constexpr int ThreadsOf(const AttentionTile& tile) {
  return 32 * tile.row_warps * tile.column_warps;
}
constexpr int ThreadsOf(int form) { return ThreadsOf(kAttentionForms[form].large); }
template <int kForm>
constexpr int SharedBytesOf() {
  return std::max(AttentionMemory<kForm, false>::kBytes, AttentionMemory<kForm, true>::kBytes);
}
constexpr int kMostSharedBytes = 227 << 10;  // of a block, compute capability 9.0
// Of a multiprocessor, and what each block takes of it beside what it asks for.
constexpr int kAllSharedBytes = 228 << 10;
constexpr int kReservedBytes = 1 << 10;
template <int kForm>
constexpr int BlocksOfMultiprocessor() {
  constexpr AttentionForm kSizes = kAttentionForms[kForm];
  constexpr int kBlocks = kSizes.blocks_of_multiprocessor();
  static_assert(kBlocks * (SharedBytesOf<kForm>() + kReservedBytes) <= kAllSharedBytes);
  return kBlocks;
}

template <int kForm>
__global__ void __launch_bounds__(ThreadsOf(kForm), BlocksOfMultiprocessor<kForm>())
    AttendKernel(const __grid_constant__ AttentionParameters p) {
  BeginAfterPrevious();
  const AttentionWork work = p.in.work[blockIdx.x];
  if (work.is_large != 0) {
    TileOfAttention<kForm, true>(p, work).Run();
  } else {
    TileOfAttention<kForm, false>(p, work).Run();
  }
}

// Slots of one tile after the other, spans in their order: the arithmetic of TileOfAttention.
template <int kForm, bool kLarge>
__device__ __forceinline__ void FoldTile(const AttentionParameters& p, const AttentionWork& work) {
  using Partial = PartialSums<kForm, kLarge>;
  constexpr AttentionTile kTile = Partial::kTile;
  constexpr int kAtOnce = 8;
  const int lane = LaneIndex();
  const int warp = WarpIndex();
  const int row_warp = warp / kTile.column_warps;
  const int column_warp = warp % kTile.column_warps;
  const QueryRows rows = p.in.sequences[work.sequence];
  for (int slot = static_cast<int>(blockIdx.y); slot < Partial::kSlots;
       slot += static_cast<int>(gridDim.y)) {
    const int row = row_warp * Partial::kWarpRows + Partial::RowOf(slot, lane);
    if (row >= work.num_rows) continue;
    float2 total = make_float2(0, 0);
    float2 statistics = make_float2(NoKeys(), 0);
    for (int first = 0; first < work.num_spans; first += kAtOnce) {
      float2 pairs[kAtOnce];
      float2 of_pairs[kAtOnce];
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) {
        if (first + i >= work.num_spans) continue;
        const Partial partial(p.in.partials, work, first + i);
        pairs[i] = partial.Pair(warp, slot, lane);
        of_pairs[i] = partial.StatisticsOf(row);
      }
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) {
        if (first + i >= work.num_spans) continue;
        const FoldScales scales = FoldScalesOf(statistics.x, of_pairs[i].x, p.scale);
        statistics = make_float2(scales.top, Fold(statistics.y, of_pairs[i].y, scales));
        total = make_float2(Fold(total.x, pairs[i].x, scales), Fold(total.y, pairs[i].y, scales));
      }
    }
    const TileRow place = TileRowOf(p, work, row);
    const float* sink = p.in.sinks == nullptr ? nullptr : p.in.sinks + place.head;
    const float share = ShareOf(statistics.x, statistics.y, p.scale, sink);
    const int column = column_warp * Partial::kColumns + Partial::ColumnOf(slot, lane);
    WriteRow<1>(
        p, rows, place, share, [&](int) { return column; }, [&](int) { return total; });
  }
}

template <int kForm>
__global__ void __launch_bounds__(ThreadsOf(kForm))
    FoldKernel(const __grid_constant__ AttentionParameters p) {
  BeginAfterPrevious();
  const AttentionWork work = p.in.folds[blockIdx.x];
  if (work.is_large != 0) {
    FoldTile<kForm, true>(p, work);
  } else {
    FoldTile<kForm, false>(p, work);
  }
}

template <int kForm>
void LaunchForm(const AttentionParameters& p, StreamHandle stream) {
  constexpr AttentionForm kForms = kAttentionForms[kForm];
  static_assert(ThreadsOf(kForms.large) == ThreadsOf(kForms.small));
  static_assert(SharedBytesOf<kForm>() <= kMostSharedBytes);
  constexpr unsigned kThreads = ThreadsOf(kForm);
  Launch(AttendKernel<kForm>, dim3(static_cast<unsigned>(p.in.num_work)), dim3(kThreads),
         SharedBytesOf<kForm>(), stream, p);
  if (p.in.num_folds == 0) return;
  constexpr unsigned kSlotsAtOnce = std::min(PartialSums<kForm, false>::kSlots, 16);
  Launch(FoldKernel<kForm>, dim3(static_cast<unsigned>(p.in.num_folds), kSlotsAtOnce),
         dim3(kThreads), 0, stream, p);
}

template <int kForm = 0>
void LaunchFormAt(int form, const AttentionParameters& p, StreamHandle stream) {
  if constexpr (kForm < kNumAttentionForms) {
    if (form == kForm) return LaunchForm<kForm>(p, stream);
    LaunchFormAt<kForm + 1>(form, p, stream);
  }
}

}  // namespace

void Attend(const AttentionShape& shape, const AttentionInputs& inputs, StreamHandle stream) {
  if (inputs.num_work == 0) return;
  const int form = AttentionFormOf(shape);
  Require(form >= 0, "attention of heads as large as these is not compiled");
  AttentionParameters p;
  p.shape = shape;
  p.in = inputs;
  p.scale = shape.scale * kLog2E;
  p.group = shape.num_heads / shape.num_kv_heads;
  if (p.group > 1) p.inverse_group = static_cast<uint32_t>((uint64_t{1} << 32) / p.group + 1);
  p.is_aligned = AreMultiples(8, shape.key_dim, shape.value_dim, inputs.query_stride,
                              std::max(shape.value_in_key, 0)) &&
                 AreMultiples(16, inputs.queries);
  p.writes_pairs =
      AreMultiples(2, shape.value_dim, inputs.out_stride) && AreMultiples(4, inputs.out);
  LaunchFormAt(form, p, stream);
}

}  // namespace convene::kernels::cuda
