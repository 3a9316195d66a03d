// The panel GEMM for any instruction set: rows of activations against one panel of packed weights.
// It does not decide which thread does which panel (grouped_gemm.h).
//
// A tile of up to 6 rows x 64 columns is held in 24 vector registers while it runs along the whole
// depth, so each output is one chain of multiply-adds in the order of the depth, whatever the
// number of rows. Bytes: a panel is read once from memory and stays in the second-level cache for
// the other tiles; operations: one dot instruction per 16 outputs and step, 24 to 10 loads.
#pragma once

#include <utility>

#include "kernels/cpu/math.h"
#include "kernels/kernel_set.h"

namespace convene::kernels::cpu {

inline constexpr int kTileRows = 6;

// A tile's operands. `out` (rows, vectors * 16) float with `out_stride` floats from row to row.
struct Tile {
  const void* const* rows = nullptr;
  const std::byte* panel = nullptr;
  int64_t steps = 0;  // of 4 bytes of each row
  float* out = nullptr;
  int64_t out_stride = 0;
  bool accumulate = false;  // add to what `out` holds, as if the depth went on
  const std::byte* prefetch = nullptr;
};

// kLines: cache lines prefetched in each step.
template <class Isa, WeightFormat kFormat, int kRows, int kVectors, int kLines>
[[gnu::noinline]] void RunTile(const Tile& tile) {
  typename Isa::Floats sums[kRows][kVectors];
  const void* rows[kRows];
  for (int row = 0; row < kRows; ++row) {
    rows[row] = tile.rows[row];
    for (int vector = 0; vector < kVectors; ++vector) {
      sums[row][vector] = tile.accumulate
                              ? Isa::Load(tile.out + row * tile.out_stride + vector * kLanes)
                              : Isa::Zero();
    }
  }
  const std::byte* panel = tile.panel;
  const std::byte* prefetch = tile.prefetch;
  const int64_t steps = tile.steps;
  for (int64_t step = 0; step < steps; ++step) {
    typename Isa::Weights weights[kVectors];
    for (int vector = 0; vector < kVectors; ++vector) {
      weights[vector] = Isa::LoadWeights(panel + vector * 64);
    }
    panel += kVectors * 64;
    for (int line = 0; line < kLines; ++line) Isa::Prefetch(prefetch + line * 64);
    prefetch += kLines * 64;
    for (int row = 0; row < kRows; ++row) {
      const auto activations = Isa::BroadcastStep(rows[row], step);
      for (int vector = 0; vector < kVectors; ++vector) {
        sums[row][vector] =
            Isa::template Dot<kFormat>(sums[row][vector], activations, weights[vector]);
      }
    }
  }
  for (int row = 0; row < kRows; ++row) {
    for (int vector = 0; vector < kVectors; ++vector) {
      Isa::Store(tile.out + row * tile.out_stride + vector * kLanes, sums[row][vector]);
    }
  }
}

using TileFunction = void (*)(const Tile&);

// The function for `num_rows` (1 to 6) rows and `num_vectors` (1 to 4) vectors of 16 columns.
template <class Isa, WeightFormat kFormat, int kLines = 0>
TileFunction ChooseTile(int num_rows, int num_vectors) {
  static constexpr auto kTable = []<int... kIndex>(std::integer_sequence<int, kIndex...>) {
    struct Table {
      TileFunction functions[sizeof...(kIndex)];
    };
    return Table{{RunTile<Isa, kFormat, kIndex / 4 + 1, kIndex % 4 + 1, kLines>...}};
  }(std::make_integer_sequence<int, kTileRows * 4>());
  return kTable.functions[(num_rows - 1) * 4 + num_vectors - 1];
}

// With fewer rows a tile only streams its panel: then what is fetched ahead is the panel itself, so
// many bytes before it is read (measured: docs/results/bf16_gemm.md).
inline constexpr int kMinRowsToPrefetchNext = 5;
inline constexpr int kStreamAheadBytes = 2048;

template <class Isa, WeightFormat kFormat>
TileFunction ChoosePrefetchingTile(int num_rows, int num_vectors, int lines) {
  if (num_vectors < 4 || lines == 0) return ChooseTile<Isa, kFormat>(num_rows, num_vectors);
  if (lines == 1) return ChooseTile<Isa, kFormat, 1>(num_rows, num_vectors);
  if (lines == 2) return ChooseTile<Isa, kFormat, 2>(num_rows, num_vectors);
  return ChooseTile<Isa, kFormat, 4>(num_rows, num_vectors);
}

template <class Isa>
void StoreTile(const PanelGemm& gemm, const float* tile, int first_row, int num_rows) {
  for (int row = 0; row < num_rows; ++row) {
    const float* from = tile + row * kPanelRows;
    auto* out = reinterpret_cast<float*>(gemm.out + (first_row + row) * gemm.out_stride);
    for (int column = 0; column < gemm.columns; column += kLanes) {
      const int count = gemm.columns - column < kLanes ? gemm.columns - column : kLanes;
      auto value = Isa::Load(from + column);
      if (gemm.bias != nullptr) value = value + Isa::LoadPartial(gemm.bias + column, count);
      if (gemm.epilogue == Epilogue::kAdd) value = Isa::LoadPartial(out + column, count) + value;
      Isa::StorePartial(out + column, value, count);
    }
  }
}

template <class Isa>
void StoreSiluMul(const PanelGemm& gemm, const float* tile, int first_row, int num_rows) {
  const int half = gemm.width / 2;
  for (int row = 0; row < num_rows; ++row) {
    const float* gate = tile + row * kPanelRows;
    std::byte* out = gemm.out + (first_row + row) * gemm.out_stride;
    for (int column = 0; column < gemm.columns; column += kLanes) {
      const int count = gemm.columns - column < kLanes ? gemm.columns - column : kLanes;
      const auto value = Silu<Isa>(Isa::Load(gate + column)) * Isa::Load(gate + half + column);
      StoreActivations<Isa>(gemm.format, out, column, value, count);
    }
  }
}

template <class Isa, WeightFormat kFormat>
void GemmOf(const PanelGemm& gemm) {
  const int64_t steps = kFormat == WeightFormat::kF32 ? gemm.depth : (gemm.depth + 1) / 2;
  const int num_vectors = gemm.width / kLanes;
  const int num_tiles = (gemm.num_rows + kTileRows - 1) / kTileRows;
  const bool streams = gemm.num_rows < kMinRowsToPrefetchNext;
  const std::byte* prefetch = streams ? gemm.panel + kStreamAheadBytes : gemm.next;
  const int64_t stream_lines = steps * num_vectors;
  int64_t lines_left = streams ? stream_lines : static_cast<int64_t>(gemm.next_bytes / 64);
  alignas(64) float buffer[kTileRows * kPanelRows];
  int done = 0;
  for (int index = 0; index < num_tiles; ++index) {
    const int tiles_left = num_tiles - index;
    const int num_rows = (gemm.num_rows - done + tiles_left - 1) / tiles_left;
    const int64_t steps_left = steps * tiles_left;
    const int lines = static_cast<int>((lines_left + steps_left - 1) / steps_left);
    const TileFunction run = ChoosePrefetchingTile<Isa, kFormat>(num_rows, num_vectors, lines);
    run({.rows = gemm.rows + done,
         .panel = gemm.panel,
         .steps = steps,
         .out = buffer,
         .out_stride = kPanelRows,
         .prefetch = prefetch});
    const int64_t prefetched = steps * (lines > 2 ? 4 : lines);
    prefetch += prefetched * 64;
    lines_left = lines_left > prefetched ? lines_left - prefetched : 0;
    if (gemm.epilogue == Epilogue::kSiluMul) {
      StoreSiluMul<Isa>(gemm, buffer, done, num_rows);
    } else {
      StoreTile<Isa>(gemm, buffer, done, num_rows);
    }
    done += num_rows;
  }
}

template <class Isa>
void Gemm(const PanelGemm& gemm) {
  if (gemm.format == WeightFormat::kF32) {
    GemmOf<Isa, WeightFormat::kF32>(gemm);
  } else {
    GemmOf<Isa, WeightFormat::kBf16>(gemm);
  }
}

}  // namespace convene::kernels::cpu
