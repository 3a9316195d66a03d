// Tiles of a GEMM for any instruction set: a few rows of activations against up to 64 columns of a
// panel, held in registers along the depth. Which tiles make a product is gemm.h.
//
// Each output is one chain of multiply-adds in the order of the depth, whatever the number of rows.
// Operations: one dot instruction per 16 outputs and step, for 4 weight loads and a broadcast per
// row and step: with 6 rows x 64 columns 24 to 10.
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
      typename Isa::template Weights<kKind> weights[kVectors];
#pragma GCC unroll 8
      for (int vector = 0; vector < kVectors; ++vector) {
        if constexpr (kHalfLines) {
          weights[vector] = Isa::LoadHalfLines(panel + vector * 64);
        } else {
          weights[vector] = Isa::template LoadWeights<kKind>(panel + vector * 64);
        }
      }
      panel += panel_stride;
#pragma GCC unroll 8
      for (int row = 0; row < kRows; ++row) {
        const auto activations = Isa::template BroadcastStep<kKind>(rows[row], step);
#pragma GCC unroll 8
        for (int vector = 0; vector < kVectors; ++vector) {
          sums[row][vector] =
              Isa::template Dot<kKind>(sums[row][vector], activations, weights[vector]);
        }
      }
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

// The least of 0, 1, 2, 4, 8 and 16 with which `lines` are prefetched in `steps`, or 16.
template <class Isa>
constexpr int PrefetchedLines(int64_t lines, int64_t steps) {
  if (lines <= 0) return 0;
  int each = 1;
  while (each < 16 && each * steps < lines * kPrefetchSteps) each *= 2;
  return each;
}

// Up to kTileRows rows against all columns of a panel, in as many tiles as the registers of the
// instruction set want.
template <class Isa, DotKind kKind>
inline void RunTiles(Tile tile, int num_rows, int num_vectors, int lines) {
  if constexpr (Isa::kRegisterTiles < kTileRows * 4) {
    const int most = Isa::kRegisterTiles / num_rows;
    const int step = most < 1 ? 1 : most > 4 ? 4 : most;
    const std::byte* panel = tile.panel;
    std::byte* out = tile.out;
    for (int vector = 0; vector < num_vectors; vector += step) {
      const int count = num_vectors - vector < step ? num_vectors - vector : step;
      tile.panel = panel + vector * 64;
      tile.out = out + vector * 64;
      ChooseTile<Isa, kKind>(num_rows, count)(tile);
    }
  } else {
    ChoosePrefetchingTile<Isa, kKind>(num_rows, num_vectors, lines, tile.half_lines)(tile);
  }
}

}  // namespace convene::kernels::cpu
