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
#include "kernels/cpu/unpack.h"

namespace convene::kernels::cpu {

// A single block only streams its panel: then what is fetched ahead is the panel itself, so many
// bytes before it is read (measured: docs/results/bf16_gemm.md). With more blocks it is the next
// panel, bit by bit.
inline constexpr int kStreamAheadBytes = 2048;

template <class Isa>
inline Prefetching PrefetchFor(const PanelGemm& gemm, int num_blocks) {
  if (num_blocks > 1) return {gemm.next, gemm.next_bytes};
  return {gemm.weights.data + kStreamAheadBytes, gemm.weights.values_bytes()};
}

// Weights that are multiplied as they lie in memory, each block of rows along the whole depth.
template <class Isa, DotKind kKind>
void GemmNative(const PanelGemm& gemm) {
  constexpr int kRows = BlockRows<Isa, kKind>();
  const int64_t steps = gemm.weights.padded() / ElementsPerStep(kKind);
  const int num_blocks = (gemm.num_rows + kRows - 1) / kRows;
  Prefetching prefetching = PrefetchFor<Isa>(gemm, num_blocks);
  alignas(64) std::byte sums[kRows * kSumStride];
  int done = 0;
  for (int index = 0; index < num_blocks; ++index) {
    const int num_rows = EvenShare<Isa, kKind>(gemm.num_rows - done, num_blocks - index);
    RunBlock<Isa, kKind>({.rows = gemm.rows + done * gemm.row_stride,
                          .row_stride = gemm.row_stride,
                          .num_rows = num_rows,
                          .panel = gemm.weights.data,
                          .width = gemm.weights.width,
                          .steps = steps,
                          .sums = sums},
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
  Prefetching prefetching = PrefetchFor<Isa>(gemm, 2);
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
      if constexpr (Isa::kMostInt4DotRows > 0) {
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
  GemmOfFormats<Isa>(gemm);
  if constexpr (Isa::template kMatrixTiles<DotKind::kBf16>) Isa::EndMatrixTiles();
}

}  // namespace convene::kernels::cpu
