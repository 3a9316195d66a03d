// Rows against several panels that are read in turn, a small piece of each at a time. A core's own
// prefetchers follow several streams at once, and those of the panels that wait run ahead
// meanwhile, so that more lines are on their way than loads and prefetches of one stream can ask
// for (docs/results/few_rows.md). Which panels and how many at once is gemm.h.
#pragma once

#include "kernels/cpu/blocks.h"

namespace convene::kernels::cpu {

struct PanelsInTurn {
  const std::byte* rows = nullptr;
  int64_t row_stride = 0;
  int num_rows = 0;                  // at most kTileRows
  const std::byte* panel = nullptr;  // of 64 rows of weights
  int64_t panel_bytes = 0;           // from panel to panel
  int num_panels = 0;
  int64_t steps = 0;
  int64_t piece_steps = 0;    // divides kPieceSteps
  std::byte* sums = nullptr;  // (num_panels, num_rows, 64)
};

// A piece of a panel, and the rows against it.
struct Piece {
  const void* const* rows = nullptr;
  int64_t first_step = 0;  // of the rows
  const std::byte* panel = nullptr;
  int64_t steps = 0;
  std::byte* sums = nullptr;
  bool accumulate = false;
};

// Vectors of 16 columns whose sums the registers hold for so many rows, in equal parts of a panel.
template <class Isa, DotKind kKind>
constexpr int PartVectors(int num_rows) {
  const int most = Isa::template kRegisterTiles<kKind> / num_rows;
  return most >= 4 ? 4 : most >= 2 ? 2 : 1;
}

template <class Isa, DotKind kKind, int kRows>
[[gnu::always_inline]] inline void AddPiece(const Piece& piece) {
  constexpr int kVectors = PartVectors<Isa, kKind>(kRows);
  constexpr int64_t kStride = 4 * kPanelRows;
  const void* rows[kRows];
#pragma GCC unroll 8
  for (int row = 0; row < kRows; ++row) rows[row] = piece.rows[row];
  for (int vector = 0; vector < kPanelRows / kLanes; vector += kVectors) {
    std::byte* at = piece.sums + vector * 64;
    typename Isa::template Sums<kKind> sums[kRows][kVectors];
#pragma GCC unroll 8
    for (int row = 0; row < kRows; ++row) {
#pragma GCC unroll 8
      for (int i = 0; i < kVectors; ++i) {
        sums[row][i] = piece.accumulate
                           ? Isa::template LoadSums<kKind>(at + row * kSumStride + i * 64)
                           : Isa::template ZeroSums<kKind>();
      }
    }
    const std::byte* panel = piece.panel + vector * 64;
    for (int64_t step = 0; step < piece.steps; ++step, panel += kStride) {
      if constexpr (Isa::template kTakesApart<kKind>) {
        AddPartsOfStep<Isa, kKind, kRows, kVectors>(rows, panel, piece.first_step + step, sums);
      } else {
        AddStep<Isa, kKind, kRows, kVectors, false>(rows, panel, piece.first_step + step, sums);
      }
    }
#pragma GCC unroll 8
    for (int row = 0; row < kRows; ++row) {
#pragma GCC unroll 8
      for (int i = 0; i < kVectors; ++i) {
        Isa::template StoreSums<kKind>(at + row * kSumStride + i * 64, sums[row][i]);
      }
    }
  }
}

template <class Isa, DotKind kKind, int kRows>
[[gnu::noinline]] void AddPanelsInTurn(const PanelsInTurn& turn) {
  constexpr bool kSpreads = Isa::template kTakesApart<kKind>;
  alignas(64) std::byte spread[kSpreads ? kRows * kPieceSteps * kSpreadBytes : 64];
  const void* rows[kRows];
  for (int row = 0; row < kRows; ++row) {
    rows[row] =
        kSpreads ? spread + row * kPieceSteps * kSpreadBytes : turn.rows + row * turn.row_stride;
  }
  for (int64_t step = 0; step < turn.steps; step += turn.piece_steps) {
    const int64_t left = turn.steps - step;
    if constexpr (kSpreads) {
      for (int row = 0; step % kPieceSteps == 0 && row < kRows; ++row) {
        Isa::template SpreadSteps<kKind>(turn.rows + row * turn.row_stride + 4 * step,
                                         left < kPieceSteps ? left : kPieceSteps,
                                         spread + row * kPieceSteps * kSpreadBytes);
      }
    }
    Piece piece{.rows = rows,
                .first_step = kSpreads ? step % kPieceSteps : step,
                .steps = left < turn.piece_steps ? left : turn.piece_steps,
                .accumulate = step > 0};
    for (int panel = 0; panel < turn.num_panels; ++panel) {
      piece.panel = turn.panel + panel * turn.panel_bytes + step * 4 * kPanelRows;
      piece.sums = turn.sums + panel * kRows * kSumStride;
      AddPiece<Isa, kKind, kRows>(piece);
    }
  }
}

template <class Isa, DotKind kKind>
void RunPanelsInTurn(const PanelsInTurn& turn) {
  switch (turn.num_rows) {
    case 1:
      return AddPanelsInTurn<Isa, kKind, 1>(turn);
    case 2:
      return AddPanelsInTurn<Isa, kKind, 2>(turn);
    case 3:
      return AddPanelsInTurn<Isa, kKind, 3>(turn);
    case 4:
      return AddPanelsInTurn<Isa, kKind, 4>(turn);
    case 5:
      return AddPanelsInTurn<Isa, kKind, 5>(turn);
    default:
      return AddPanelsInTurn<Isa, kKind, 6>(turn);
  }
}

}  // namespace convene::kernels::cpu
