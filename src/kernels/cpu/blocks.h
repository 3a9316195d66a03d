// Blocks of rows against all columns of a panel: tiles of registers, or the tiles of a matrix unit
// where the instruction set has one.
#pragma once

#include "kernels/cpu/tile.h"

namespace convene::kernels::cpu {

// Bytes from row to row of the sums of a block: 64 float or int32.
inline constexpr int64_t kSumStride = 4 * kPanelRows;

struct Block {
  const std::byte* rows = nullptr;
  int64_t row_stride = 0;
  int num_rows = 0;  // at most BlockRows<Isa, kKind>()
  const std::byte* panel = nullptr;
  int width = 0;
  int64_t steps = 0;
  std::byte* sums = nullptr;  // (num_rows)
  int64_t sum_stride = kSumStride;
  bool accumulate = false;  // as Tile, as is the next one
  bool half_lines = false;
};

// What is left to pull into the cache while blocks are computed.
struct Prefetching {
  const std::byte* from = nullptr;
  size_t bytes = 0;
};

// All of the panel that the thread takes next, if that is fetched.
[[gnu::always_inline]] inline Prefetching NextPanel(const PanelGemm& gemm) {
  return {gemm.next, gemm.streaming.fetches_next ? gemm.next_bytes : 0};
}

template <class Isa, DotKind kKind>
constexpr int BlockRows() {
  if constexpr (Isa::template kMatrixTiles<kKind>) {
    return Isa::kBlockRows;
  } else {
    return kTileRows;
  }
}

// Rows of the next of `num_blocks` blocks: as even as can be, except that a matrix unit wants whole
// tiles.
template <class Isa, DotKind kKind>
inline int EvenShare(int num_rows, int num_blocks) {
  if constexpr (Isa::template kMatrixTiles<kKind>) {
    return num_rows < Isa::kBlockRows ? num_rows : Isa::kBlockRows;
  } else {
    return (num_rows + num_blocks - 1) / num_blocks;
  }
}

// `blocks_left`: this one and those that will come with the same `prefetching`.
template <class Isa, DotKind kKind>
inline void RunBlock(const Block& block, Prefetching& prefetching, int blocks_left) {
  const int64_t steps_left = block.steps * blocks_left;
  const auto lines_left = static_cast<int64_t>(prefetching.bytes / 64);
  if constexpr (Isa::template kMatrixTiles<kKind>) {
    const int64_t lines = (lines_left + blocks_left - 1) / blocks_left;
    Isa::BeginMatrixTiles(block.num_rows);
    Isa::template RunMatrixTiles<kKind>(block, prefetching.from, lines);
    prefetching.from += lines * 64;
    prefetching.bytes -= static_cast<size_t>(lines * 64);
  } else {
    const int lines = PrefetchedLines<Isa, kKind>(lines_left, steps_left);
    const void* rows[kTileRows];
    for (int row = 0; row < block.num_rows; ++row) rows[row] = block.rows + row * block.row_stride;
    RunTiles<Isa, kKind>({.rows = rows,
                          .panel = block.panel,
                          .panel_stride = 4 * block.width,
                          .steps = block.steps,
                          .out = block.sums,
                          .out_stride = block.sum_stride,
                          .accumulate = block.accumulate,
                          .prefetch = prefetching.from,
                          .half_lines = block.half_lines},
                         block.num_rows, block.width / kLanes, lines);
    const int64_t fetched = block.steps / kPrefetchSteps * lines * 64;
    const int64_t bytes = static_cast<int64_t>(prefetching.bytes);
    prefetching.from += fetched;
    prefetching.bytes = static_cast<size_t>(bytes > fetched ? bytes - fetched : 0);
  }
}

}  // namespace convene::kernels::cpu
