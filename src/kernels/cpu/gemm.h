// The panel GEMM for any instruction set: rows of activations against one panel of packed weights.
// It does not decide which thread does which panel (grouped_gemm.h).
//
// Bytes: a panel is read once from memory and stays in the second-level cache for the other tiles,
// while the next panel is prefetched. Compressed weights are unpacked in pieces that stay in the
// first-level cache, once for up to 256 rows; int4 weights and few rows are multiplied as they are
// where the instruction set can (int4_dot.h).
#pragma once

#include "kernels/cpu/blocks.h"
#include "kernels/cpu/epilogue.h"
#include "kernels/cpu/int4_dot.h"
#include "kernels/cpu/int4_tiles.h"
#include "kernels/cpu/panels_in_turn.h"
#include "kernels/cpu/stream.h"
#include "kernels/cpu/unpack.h"

namespace convene::kernels::cpu {

// Rows with which a panel is read once and in its order.
template <class Isa, DotKind kKind>
constexpr int MostStreamedRows() {
  if constexpr (Isa::template kMatrixTiles<kKind>) {
    return Isa::kTileWidth;
  } else {
    return kTileRows;
  }
}

// Steps that are fetched ahead: what blocks can be cut into.
template <class Isa, DotKind kKind>
constexpr int64_t AheadSteps(const PanelStreaming& streaming, int64_t step_bytes) {
  int64_t steps_of_cut = kPrefetchSteps;
  if constexpr (Isa::template kMatrixTiles<kKind>) steps_of_cut = Isa::kTileSteps;
  return streaming.ahead_bytes / step_bytes / steps_of_cut * steps_of_cut;
}

// A block that is the only one streams its panel from memory: PanelStreaming::ahead_bytes ahead of
// what is read are fetched, behind the panel's end those of the one that the thread takes next.
template <class Isa, DotKind kKind>
void StreamPanel(const PanelGemm& gemm, std::byte* sums) {
  const int64_t step_bytes = 4 * gemm.weights.width;
  const int64_t steps = gemm.weights.padded() / ElementsPerStep(kKind);
  const int64_t ahead_steps = AheadSteps<Isa, kKind>(gemm.streaming, step_bytes);
  const int64_t last_steps = ahead_steps < steps ? ahead_steps : steps;
  const int64_t last_bytes = last_steps * step_bytes;
  Block block{.rows = gemm.rows,
              .row_stride = gemm.row_stride,
              .num_rows = gemm.num_rows,
              .panel = gemm.weights.data,
              .width = gemm.weights.width,
              .steps = steps - last_steps,
              .sums = sums,
              .half_lines = gemm.streaming.half_lines};
  if (block.steps > 0) {
    const int64_t bytes = block.steps * step_bytes;
    Prefetching own{gemm.weights.data + last_bytes,
                    last_steps > 0 ? static_cast<size_t>(bytes) : 0};
    RunBlock<Isa, kKind>(block, own, 1);
    block.rows += 4 * block.steps;
    block.panel += bytes;
    block.accumulate = true;
  }
  if (last_steps > 0) {
    block.steps = last_steps;
    Prefetching next{gemm.next, gemm.next != nullptr ? static_cast<size_t>(last_bytes) : 0};
    RunBlock<Isa, kKind>(block, next, 1);
  }
}

template <class Isa, DotKind kKind>
void SumPanels(const PanelGemm& gemm, int num_panels, std::byte* sums) {
  if constexpr (!Isa::template kMatrixTiles<kKind>) {
    if (num_panels > 1) {
      return RunPanelsInTurn<Isa, kKind>(
          {.rows = gemm.rows,
           .row_stride = gemm.row_stride,
           .num_rows = gemm.num_rows,
           .panel = gemm.weights.data,
           .panel_bytes = static_cast<int64_t>(gemm.weights.size_bytes()),
           .num_panels = num_panels,
           .steps = gemm.weights.padded() / ElementsPerStep(kKind),
           .piece_steps = gemm.streaming.piece_bytes / (4 * kPanelRows),
           .sums = sums});
    }
  }
  StreamPanel<Isa, kKind>(gemm, sums);
}

// Panels one after the other, or so many of them in turn, and what follows their sums after the
// last one: it waits for the last loads of its panel, and as long as it waits no load of the next
// one can begin.
template <class Isa, DotKind kKind, class Sum>
void GemmPanels(const PanelGemm& gemm, int num_in_turn, Sum sum_panels) {
  const int64_t sums_bytes = gemm.num_rows * kSumStride;
  for (int index = 0; index < gemm.num_panels;) {
    const int left = gemm.num_panels - index;
    const int count = left < num_in_turn ? left : num_in_turn;
    sum_panels(PanelOf(gemm, index), count, gemm.scratch + index * sums_bytes);
    index += count;
  }
  for (int index = 0; index < gemm.num_panels; ++index) {
    Finish<Isa, kKind>(PanelOf(gemm, index), gemm.scratch + index * sums_bytes, 0, gemm.num_rows);
  }
}
static_assert(kMostPanels * 16 * kSumStride <= kGemmScratchBytes);  // of rows that are streamed

[[gnu::always_inline]] inline int NumInTurn(const PanelGemm& gemm) {
  return gemm.weights.width == kPanelRows ? gemm.streaming.streams : 1;
}

template <class Isa, DotKind kKind>
bool GemmStreamed(const PanelGemm& gemm) {
  if (gemm.num_rows > MostStreamedRows<Isa, kKind>()) return false;
  const int num_in_turn = Isa::template kMatrixTiles<kKind> ? 1 : NumInTurn(gemm);
  GemmPanels<Isa, kKind>(gemm, num_in_turn, SumPanels<Isa, kKind>);
  return true;
}

// Weights that are multiplied as they lie in memory, each block of rows along the whole depth. With
// several blocks the panel stays in the caches, and the next one is fetched bit by bit. Where it is
// not, the first block has as many rows as can be: it computes while the panel comes from memory.
template <class Isa, DotKind kKind>
void GemmNative(const PanelGemm& gemm) {
  constexpr int kRows = BlockRows<Isa, kKind>();
  const int64_t steps = gemm.weights.padded() / ElementsPerStep(kKind);
  const int num_blocks = (gemm.num_rows + kRows - 1) / kRows;
  Prefetching prefetching = NextPanel(gemm);
  alignas(64) std::byte sums[kRows * kSumStride];
  int done = 0;
  for (int index = 0; index < num_blocks; ++index) {
    const bool is_first = index == 0;
    const bool is_full = is_first && !gemm.streaming.fetches_next && gemm.num_rows > kRows;
    const int num_rows =
        is_full ? kRows : EvenShare<Isa, kKind>(gemm.num_rows - done, num_blocks - index);
    RunBlock<Isa, kKind>(
        {.rows = gemm.rows + done * gemm.row_stride,
         .row_stride = gemm.row_stride,
         .num_rows = num_rows,
         .panel = gemm.weights.data,
         .width = gemm.weights.width,
         .steps = steps,
         .sums = sums,
         .half_lines = is_first && !gemm.streaming.fetches_next && gemm.streaming.half_lines},
        prefetching, num_blocks - index);
    Finish<Isa, kKind>(gemm, sums, done, num_rows);
    done += num_rows;
  }
}

// Integer weights that are made bytes or bf16, piece by piece, in a scratch that stays in the
// caches. The sums wait in the scratch between pieces, so each is one chain all the same. (Pieces
// of weights that need no unpacking were slower than the whole depth: docs/results/int_gemm.md.)
template <class Isa, DotKind kKind>
void GemmUnpacked(const PanelGemm& gemm) {
  constexpr int kRows = BlockRows<Isa, kKind>();
  constexpr int kDepth = kUnpackedDepth;
  std::byte* unpacked = gemm.scratch;
  std::byte* sums = gemm.scratch + int64_t{2} * kUnpackedDepth * kPanelRows;
  Prefetching prefetching = NextPanel(gemm);
  const int padded = gemm.weights.padded();
  const int pieces = (padded + kDepth - 1) / kDepth;
  for (int first = 0; first < gemm.num_rows; first += kUnpackedRows) {
    const int rows_here =
        gemm.num_rows - first < kUnpackedRows ? gemm.num_rows - first : kUnpackedRows;
    const int num_blocks = (rows_here + kRows - 1) / kRows;
    for (int piece = 0; piece < pieces; ++piece) {
      const int col = piece * kDepth;
      const int count = padded - col < kDepth ? padded - col : kDepth;
      const int64_t first_step = col / ElementsPerStep(kKind);
      Unpack<Isa, kKind>(gemm.weights, col, count, unpacked);
      int done = 0;
      for (int index = 0; index < num_blocks; ++index) {
        const int num_rows = EvenShare<Isa, kKind>(rows_here - done, num_blocks - index);
        RunBlock<Isa, kKind>({.rows = gemm.rows + (first + done) * gemm.row_stride + first_step * 4,
                              .row_stride = gemm.row_stride,
                              .num_rows = num_rows,
                              .panel = unpacked,
                              .width = gemm.weights.width,
                              .steps = count / ElementsPerStep(kKind),
                              .sums = sums + done * kSumStride,
                              .accumulate = piece > 0},
                             prefetching, num_blocks * (pieces - piece) - index);
        done += num_rows;
      }
    }
    for (int done = 0; done < rows_here; done += kRows) {
      const int num_rows = rows_here - done < kRows ? rows_here - done : kRows;
      Finish<Isa, kKind>(gemm, sums + done * kSumStride, first + done, num_rows);
    }
  }
}

// False: it has more rows than are streamed, or its weights are unpacked first.
template <class Isa>
bool StreamsPanels(const PanelGemm& gemm) {
  const bool int8_rows = gemm.activations == ActivationFormat::kInt8;
  switch (gemm.weights.format) {
    case WeightFormat::kF32:
      return GemmStreamed<Isa, DotKind::kF32>(gemm);
    case WeightFormat::kBf16:
      return GemmStreamed<Isa, DotKind::kBf16>(gemm);
    case WeightFormat::kInt8:
      return int8_rows && GemmStreamed<Isa, DotKind::kInt8>(gemm);
    case WeightFormat::kInt4:
      if constexpr (Isa::kMostInt4DotRows > 0) {
        constexpr int kMost =
            Isa::kMostInt4DotRows < kInt4DotRows ? Isa::kMostInt4DotRows : kInt4DotRows;
        if (!int8_rows || gemm.num_rows > kMost) return false;
        GemmPanels<Isa, DotKind::kInt8>(
            gemm, NumInTurn(gemm), [](const PanelGemm& panel, int num_panels, std::byte* sums) {
              RunInt4Rows<Isa>(panel, num_panels, 0, panel.num_rows, sums);
            });
        return true;
      }
      return false;
  }
  return false;
}

template <class Isa>
void GemmOfFormats(const PanelGemm& gemm) {
  const bool int8_rows = gemm.activations == ActivationFormat::kInt8;
  switch (gemm.weights.format) {
    case WeightFormat::kF32:
      return GemmNative<Isa, DotKind::kF32>(gemm);
    case WeightFormat::kBf16:
      return GemmNative<Isa, DotKind::kBf16>(gemm);
    case WeightFormat::kInt8:
      return int8_rows ? GemmNative<Isa, DotKind::kInt8>(gemm)
                       : GemmUnpacked<Isa, DotKind::kBf16>(gemm);
    case WeightFormat::kInt4:
      if (!int8_rows) return GemmUnpacked<Isa, DotKind::kBf16>(gemm);
      if constexpr (Isa::kMostInt4DotRows > kInt4DotRows) {
        if (gemm.num_rows <= Isa::kMostInt4DotRows) return GemmInt4Dot<Isa>(gemm);
      }
      if constexpr (Isa::template kMatrixTiles<DotKind::kInt8>) {
        return GemmInt4Tiles<Isa>(gemm);
      } else {
        return GemmUnpacked<Isa, DotKind::kInt8>(gemm);
      }
  }
}

template <class Isa>
void Gemm(const PanelGemm& gemm) {
  if (!StreamsPanels<Isa>(gemm)) {
    for (int index = 0; index < gemm.num_panels; ++index) {
      GemmOfFormats<Isa>(PanelOf(gemm, index));
    }
  }
  if (gemm.streams_out) Isa::FenceStreamed();
  if constexpr (Isa::template kMatrixTiles<DotKind::kBf16>) Isa::EndMatrixTiles();
}

}  // namespace convene::kernels::cpu
