// Tiles of a GEMM for any instruction set: a few rows of activations against up to 64 columns of a
// panel, held in registers along the depth. Which tiles make a product is gemm.h.
//
// Each output is one chain of multiply-adds in the order of the depth, whatever the number of rows.
// Operations: one dot instruction per 16 outputs and step, for 4 weight loads and a broadcast per
// row and step: with 6 rows x 64 columns 24 to 10.
//
// An instruction set without dot products of bf16 or bytes multiplies the even and the odd elements
// of a step one after the other (kTakesApart). Taking activations apart costs as much as two
// products, so rows are spread once for all columns of a panel: each half is then a broadcast.
#pragma once

#include <cstdint>
#include <type_traits>
#include <utility>

#include "kernels/kernel_set.h"

namespace convene::kernels::cpu {

// What is multiplied: float32 with float32, bf16 with bf16 (sums in float32), or signed activations
// with weights that have kInt8Zero added (sums in int32). A step is 4 bytes of a row: 1, 2 or 4
// elements.
enum class DotKind { kF32, kBf16, kInt8 };

constexpr int ElementsPerStep(DotKind kind) {
  return kind == DotKind::kF32 ? 1 : kind == DotKind::kBf16 ? 2 : 4;
}

inline constexpr int kTileRows = 6;

struct Tile {
  const void* const* rows = nullptr;
  const std::byte* panel = nullptr;  // of the first column
  int64_t panel_stride = 0;          // bytes from step to step
  int64_t steps = 0;                 // of 4 bytes of each row
  std::byte* out = nullptr;          // (rows, vectors * 16) float or int32
  int64_t out_stride = 0;            // bytes from row to row
  bool accumulate = false;           // add to what `out` holds, as if the depth went on
  const std::byte* prefetch = nullptr;
  bool half_lines = false;  // as PanelStreaming
};

// kLines: cache lines prefetched in every kPrefetchSteps steps. kHalfLines: where the instruction
// set has lines in one register, each is loaded as two halves. Only with every loop over them
// unrolled early do the sums live in registers.
inline constexpr int64_t kPrefetchSteps = 4;

template <class Isa, DotKind kKind, int kRows, int kVectors, bool kHalfLines>
[[gnu::always_inline]] inline void AddStep(
    const void* const (&rows)[kRows], const std::byte* panel, int64_t step,
    typename Isa::template Sums<kKind> (&sums)[kRows][kVectors]) {
  typename Isa::template Weights<kKind> weights[kVectors];
#pragma GCC unroll 8
  for (int vector = 0; vector < kVectors; ++vector) {
    if constexpr (kHalfLines) {
      weights[vector] = Isa::LoadHalfLines(panel + vector * 64);
    } else {
      weights[vector] = Isa::template LoadWeights<kKind>(panel + vector * 64);
    }
  }
#pragma GCC unroll 8
  for (int row = 0; row < kRows; ++row) {
    const auto activations = Isa::template BroadcastStep<kKind>(rows[row], step);
#pragma GCC unroll 8
    for (int vector = 0; vector < kVectors; ++vector) {
      sums[row][vector] = Isa::template Dot<kKind>(sums[row][vector], activations, weights[vector]);
    }
  }
}

// A step's products with even and odd elements taken apart. `rows` are spread.
template <class Isa, DotKind kKind, int kRows, int kVectors>
[[gnu::always_inline]] inline void AddPartsOfStep(
    const void* const (&rows)[kRows], const std::byte* panel, int64_t step,
    typename Isa::template Sums<kKind> (&sums)[kRows][kVectors]) {
#pragma GCC unroll 2
  for (int part = 0; part < 2; ++part) {
#pragma GCC unroll 8
    for (int vector = 0; vector < kVectors; ++vector) {
      const auto weights = Isa::template LoadPart<kKind>(panel + vector * 64, part);
#pragma GCC unroll 8
      for (int row = 0; row < kRows; ++row) {
        sums[row][vector] = Isa::template DotPart<kKind>(
            sums[row][vector], Isa::BroadcastPart(rows[row], 2 * step + part), weights);
      }
    }
  }
}

template <class Isa, DotKind kKind, int kRows, int kVectors, int kLines, bool kHalfLines>
[[gnu::noinline]] void RunTile(const Tile& tile) {
  typename Isa::template Sums<kKind> sums[kRows][kVectors];
  const void* rows[kRows];
#pragma GCC unroll 8
  for (int row = 0; row < kRows; ++row) {
    rows[row] = tile.rows[row];
#pragma GCC unroll 8
    for (int vector = 0; vector < kVectors; ++vector) {
      const std::byte* from = tile.out + row * tile.out_stride + vector * 64;
      sums[row][vector] =
          tile.accumulate ? Isa::template LoadSums<kKind>(from) : Isa::template ZeroSums<kKind>();
    }
  }
  const std::byte* panel = tile.panel;
  const std::byte* prefetch = tile.prefetch;
  const int64_t panel_stride = tile.panel_stride;
  const int64_t steps = tile.steps;
  for (int64_t step = 0; step < steps;) {
#pragma GCC unroll 16
    for (int line = 0; line < kLines; ++line) Isa::Prefetch(prefetch + line * 64);
    prefetch += kLines * 64;
    const int64_t end =
        kLines == 0 || steps - step < kPrefetchSteps ? steps : step + kPrefetchSteps;
    for (; step < end; ++step) {
      if constexpr (Isa::template kTakesApart<kKind>) {
        AddPartsOfStep<Isa, kKind, kRows, kVectors>(rows, panel, step, sums);
      } else {
        AddStep<Isa, kKind, kRows, kVectors, kHalfLines>(rows, panel, step, sums);
      }
      panel += panel_stride;
    }
  }
#pragma GCC unroll 8
  for (int row = 0; row < kRows; ++row) {
#pragma GCC unroll 8
    for (int vector = 0; vector < kVectors; ++vector) {
      Isa::template StoreSums<kKind>(tile.out + row * tile.out_stride + vector * 64,
                                     sums[row][vector]);
    }
  }
}

using TileFunction = void (*)(const Tile&);

// The function for `num_rows` (1 to 6) rows and `num_vectors` (1 to 4) vectors of 16 columns.
template <class Isa, DotKind kKind, int kLines = 0, bool kHalfLines = false>
TileFunction ChooseTile(int num_rows, int num_vectors) {
  static constexpr auto kTable = []<int... kIndex>(std::integer_sequence<int, kIndex...>) {
    struct Table {
      TileFunction functions[sizeof...(kIndex)];
    };
    return Table{{RunTile<Isa, kKind, kIndex / 4 + 1, kIndex % 4 + 1, kLines, kHalfLines>...}};
  }(std::make_integer_sequence<int, kTileRows * 4>());
  return kTable.functions[(num_rows - 1) * 4 + num_vectors - 1];
}

template <class Isa, DotKind kKind>
TileFunction ChoosePrefetchingTile(int num_rows, int num_vectors, int lines, bool half_lines) {
  if constexpr (Isa::kLoadsHalfLines) {
    // What is fetched more slowly is another panel, and this one is in the cache.
    if (half_lines && num_vectors == 4) {
      if (lines == 0) return ChooseTile<Isa, kKind, 0, true>(num_rows, 4);
      if (lines == 16) return ChooseTile<Isa, kKind, 16, true>(num_rows, 4);
    }
  }
  if (num_vectors < 4 || lines == 0) return ChooseTile<Isa, kKind>(num_rows, num_vectors);
  switch (lines) {
    case 1:
      return ChooseTile<Isa, kKind, 1>(num_rows, num_vectors);
    case 2:
      return ChooseTile<Isa, kKind, 2>(num_rows, num_vectors);
    case 4:
      return ChooseTile<Isa, kKind, 4>(num_rows, num_vectors);
    case 8:
      return ChooseTile<Isa, kKind, 8>(num_rows, num_vectors);
    default:
      return ChooseTile<Isa, kKind, 16>(num_rows, num_vectors);
  }
}

// Whether registers hold the sums of kTileRows rows against a whole panel.
template <class Isa, DotKind kKind>
inline constexpr bool kHoldsWholePanel =
    Isa::template kRegisterTiles<kKind> >= kTileRows * 4 && !Isa::template kTakesApart<kKind>;

// The least of 0, 1, 2, 4, 8 and 16 with which `lines` are prefetched in `steps`, or 16. A panel in
// parts has a line for each of them at least.
template <class Isa, DotKind kKind>
constexpr int PrefetchedLines(int64_t lines, int64_t steps) {
  if (lines <= 0) return 0;
  int each = kHoldsWholePanel<Isa, kKind> ? 1 : 4;
  while (each < 16 && each * steps < lines * kPrefetchSteps) each *= 2;
  return each;
}

// The function that prefetches `lines` (of a whole panel) in every kPrefetchSteps steps, as many of
// them as its columns are of the panel's.
template <class Isa, DotKind kKind>
TileFunction ChoosePartTile(int num_rows, int num_vectors, int lines) {
  static constexpr auto kTables = []<int... kIndex>(std::integer_sequence<int, kIndex...>) {
    struct Tables {
      TileFunction of_lines[3][sizeof...(kIndex)];
    };
    return Tables{
        {{RunTile<Isa, kKind, kIndex / 4 + 1, kIndex % 4 + 1, kIndex % 4 + 1, false>...},
         {RunTile<Isa, kKind, kIndex / 4 + 1, kIndex % 4 + 1, 2 * (kIndex % 4 + 1), false>...},
         {RunTile<Isa, kKind, kIndex / 4 + 1, kIndex % 4 + 1, 4 * (kIndex % 4 + 1), false>...}}};
  }(std::make_integer_sequence<int, kTileRows * 4>());
  if (lines < 4) return ChooseTile<Isa, kKind>(num_rows, num_vectors);
  return kTables.of_lines[lines < 8 ? 0 : lines < 16 ? 1 : 2][(num_rows - 1) * 4 + num_vectors - 1];
}

// Where registers hold a part of the columns' sums, a piece of the depth is read for one part after
// the other, and stays in the first-level cache meanwhile.
inline constexpr int64_t kPieceSteps = 64;
inline constexpr int64_t kSpreadBytes = 8;  // of a step of a row whose halves are apart

template <class Isa, DotKind kKind>
inline void RunTilesInPieces(const Tile& whole, int num_rows, int num_vectors, int lines) {
  constexpr bool kSpreads = Isa::template kTakesApart<kKind>;
  constexpr int kHeld = Isa::template kRegisterTiles<kKind>;
  const int most = kHeld / num_rows < 1 ? 1 : kHeld / num_rows;
  const int num_parts = (num_vectors + most - 1) / most;
  const int part_vectors = (num_vectors + num_parts - 1) / num_parts;
  alignas(64) std::byte spread[kSpreads ? kTileRows * kPieceSteps * kSpreadBytes : 64];
  const void* rows[kTileRows];
  Tile tile = whole;
  tile.rows = rows;
  for (int64_t done = 0; done < whole.steps; done += kPieceSteps) {
    tile.steps = whole.steps - done < kPieceSteps ? whole.steps - done : kPieceSteps;
    tile.accumulate = whole.accumulate || done > 0;
    for (int row = 0; row < num_rows; ++row) {
      rows[row] = static_cast<const std::byte*>(whole.rows[row]) + 4 * done;
      if constexpr (kSpreads) {
        std::byte* halves = spread + row * kPieceSteps * kSpreadBytes;
        Isa::template SpreadSteps<kKind>(rows[row], tile.steps, halves);
        rows[row] = halves;
      }
    }
    for (int vector = 0; vector < num_vectors; vector += part_vectors) {
      const int left = num_vectors - vector;
      const int count = left < part_vectors ? left : part_vectors;
      tile.panel = whole.panel + done * whole.panel_stride + vector * 64;
      tile.out = whole.out + vector * 64;
      ChoosePartTile<Isa, kKind>(num_rows, count, lines)(tile);
      if (lines >= 4) tile.prefetch += tile.steps / kPrefetchSteps * lines / 4 * count * 64;
    }
  }
}

// Up to kTileRows rows against all columns of a panel, in as many tiles as the registers of the
// instruction set want.
template <class Isa, DotKind kKind>
inline void RunTiles(const Tile& tile, int num_rows, int num_vectors, int lines) {
  if constexpr (kHoldsWholePanel<Isa, kKind>) {
    ChoosePrefetchingTile<Isa, kKind>(num_rows, num_vectors, lines, tile.half_lines)(tile);
  } else {
    RunTilesInPieces<Isa, kKind>(tile, num_rows, num_vectors, lines);
  }
}

}  // namespace convene::kernels::cpu
