// int4 weights on a matrix unit: the vector unit unpacks the tiles of one step while the matrix
// unit multiplies those of the step before, and the sums stay in tiles along the depth. Unpacking
// and products one after the other took twice the time (docs/results/int_gemm.md).
//
// Up to 16 rows: two steps' tiles lie in the first-level cache, overwritten in turn. More rows:
// half of the panel's columns at a time, and what is unpacked is kept for the blocks of rows that
// follow.
#pragma once

#include "kernels/cpu/epilogue.h"
#include "kernels/cpu/stream.h"
#include "kernels/cpu/unpack.h"

namespace convene::kernels::cpu {

inline constexpr int64_t kTileBytes = 1024;  // 16 steps of 16 columns
inline constexpr int kTileDepth = 64;        // bytes of a row in one step of tiles

// What tiles are unpacked from and to: `vectors` of 16 columns, `steps` of kTileDepth rows of W.
struct Unpacking {
  int first_vector = 0;
  int vectors = 0;
  int64_t first_step = 0;
  int64_t steps = 0;
  std::byte* tiles = nullptr;
  int64_t step_mask = -1;           // 1: two steps' tiles in turn
  const std::byte* next = nullptr;  // to fetch beside it
  int64_t next_lines = 0;           // in every part
};

// Unpacks step + 1 while step is multiplied: as much at each call as one vector of 16 columns has.
// kStream: the panel is read once, so it is fetched ahead. Everything that is the same in all parts
// of a step is worked out in the first.
template <class Isa, int kVectors, bool kStream>
struct UnpackBeside {
  const PanelGemm& gemm;
  Unpacking work;
  const int group_shift = __builtin_ctz(static_cast<unsigned>(gemm.weights.group));
  const std::byte* scales[2] = {};  // of the step's two blocks of 32 columns
  const std::byte* blocks[2] = {};
  const std::byte* ahead[2] = {};
  std::byte* out = nullptr;

  [[gnu::always_inline]] void operator()(int64_t step, int part) {
    for (int64_t line = 0; line < work.next_lines; ++line, work.next += 64) {
      Isa::Prefetch(work.next);
    }
    if (kStream && part == 0) FetchForEpilogue<Isa>(gemm, step);
    if (step + 1 >= work.steps) return;
    if (part == 0) BeginStep(step + 1);
    Unpack(part);
  }

  void UnpackFirst() {
    BeginStep(0);
#pragma GCC unroll 4
    for (int part = 0; part < kVectors; ++part) Unpack(part);
  }

 private:
  [[gnu::always_inline]] void BeginStep(int64_t step) {
    const PackedPanel& panel = gemm.weights;
    const int64_t half_width = panel.width / 2;
#pragma GCC unroll 2
    for (int index = 0; index < 2; ++index) {
      const int64_t col = (work.first_step + step) * kTileDepth + index * kInt4Block;
      const int64_t group = col >> group_shift;
      scales[index] = panel.data + (group << group_shift) * half_width + group * kPanelRows +
                      work.first_vector * kLanes;
      blocks[index] =
          panel.data + col * half_width + (group + 1) * kPanelRows + work.first_vector * 256;
      if constexpr (kStream) {
        ahead[index] = AheadOf(gemm, blocks[index]);
        Isa::Prefetch(ahead[index] - work.first_vector * 256 - kPanelRows);  // a group's scales
      }
    }
    out = work.tiles + (step & work.step_mask) * kVectors * kTileBytes;
  }

  // A vector at a time, each after its tile of the step before has been loaded: a load that comes
  // after a store to the same place of another page takes it for its own. Memory is fetched in
  // its order.
  [[gnu::always_inline]] void Unpack(int part) const {
#pragma GCC unroll 2
    for (int index = 0; index < 2; ++index) {
      const std::byte* from = blocks[index] + part * 256;
      std::byte* to = out + part * kTileBytes + index * kTileBytes / 2;
      const int fetched = 2 * part + index;
      const std::byte* fetch = nullptr;
      if constexpr (kStream) fetch = fetched < kVectors ? ahead[0] : ahead[1] - kVectors * 256;
      const auto spread = Isa::SpreadInt4Scales(scales[index] + part * kLanes);
#pragma GCC unroll 4
      for (int line = 0; line < 4; ++line) {
        if constexpr (kStream) Isa::Prefetch(fetch + fetched * 256 + line * 64);
        Isa::UnpackInt4Line(from + line * 64, spread, to + line * 128, to + line * 128 + 64);
      }
    }
  }
};

// The block's first tiles are unpacked before the loop, the others beside it.
template <class Isa, bool kStream>
void RunUnpacking(const PanelGemm& gemm, const Block& block, const Unpacking& work) {
  const auto run = [&]<int kVectors>(std::integral_constant<int, kVectors>) {
    UnpackBeside<Isa, kVectors, kStream> beside{gemm, work};
    beside.UnpackFirst();
    Isa::BeginMatrixTiles(block.num_rows);
    Isa::template RunTilesBeside<DotKind::kInt8, kVectors>(
        block,
        typename Isa::TilePanel{work.tiles, 64, kTileBytes, kVectors * kTileBytes, work.step_mask},
        beside);
  };
  switch (work.vectors) {
    case 1:
      return run(std::integral_constant<int, 1>());
    case 2:
      return run(std::integral_constant<int, 2>());
    case 3:
      if constexpr (kStream) return run(std::integral_constant<int, 3>());
      return;
    default:
      if constexpr (kStream) return run(std::integral_constant<int, 4>());
  }
}

template <class Isa>
void GemmInt4Streamed(const PanelGemm& gemm) {
  alignas(64) std::byte sums[Isa::kTileWidth * kSumStride];
  const int64_t steps = gemm.weights.padded() / kTileDepth;
  RunUnpacking<Isa, true>(gemm,
                          {.rows = gemm.rows,
                           .row_stride = gemm.row_stride,
                           .num_rows = gemm.num_rows,
                           .steps = steps * Isa::kTileSteps,
                           .sums = sums},
                          {.vectors = gemm.weights.width / kLanes,
                           .steps = steps,
                           .tiles = gemm.scratch,
                           .step_mask = 1});
  Finish<Isa, DotKind::kInt8>(gemm, sums, 0, gemm.num_rows);
}

// Rows [first_row, first_row + num_rows), at most kUnpackedRows. The depth is cut where the scratch
// ends.
template <class Isa>
void GemmInt4Kept(const PanelGemm& gemm, int first_row, int num_rows, Prefetching& prefetching) {
  constexpr int64_t kMostSteps = 2 * kUnpackedDepth * kPanelRows / (2 * kTileBytes);
  constexpr int kRows = Isa::kBlockRows;
  std::byte* all_sums = gemm.scratch + int64_t{2} * kUnpackedDepth * kPanelRows;
  const int64_t steps = gemm.weights.padded() / kTileDepth;
  const int vectors = gemm.weights.width / kLanes;
  const int num_blocks = (num_rows + kRows - 1) / kRows;
  const auto lines = static_cast<int64_t>(prefetching.bytes / 64);
  const int64_t parts = num_blocks * steps * vectors;
  const int64_t lines_per_part = (lines + parts - 1) / parts;
  for (int64_t step = 0; step < steps; step += kMostSteps) {
    const int64_t steps_here = steps - step < kMostSteps ? steps - step : kMostSteps;
    for (int vector = 0; vector < vectors; vector += 2) {
      const int vectors_here = vectors - vector < 2 ? vectors - vector : 2;
      const typename Isa::TilePanel panel{gemm.scratch, 64, kTileBytes, vectors_here * kTileBytes};
      for (int done = 0; done < num_rows; done += kRows) {
        const Block block{
            .rows = gemm.rows + (first_row + done) * gemm.row_stride + step * kTileDepth,
            .row_stride = gemm.row_stride,
            .num_rows = num_rows - done < kRows ? num_rows - done : kRows,
            .steps = steps_here * Isa::kTileSteps,
            .sums = all_sums + done * kSumStride + vector * 64,
            .accumulate = step > 0};
        if (done == 0) {
          RunUnpacking<Isa, false>(gemm, block,
                                   {.first_vector = vector,
                                    .vectors = vectors_here,
                                    .first_step = step,
                                    .steps = steps_here,
                                    .tiles = gemm.scratch,
                                    .next = prefetching.from,
                                    .next_lines = lines_per_part});
        } else {
          Isa::BeginMatrixTiles(block.num_rows);
          const typename Isa::template PrefetchBeside<64> beside{panel, steps_here,
                                                                 prefetching.from, lines_per_part};
          Isa::template RunTilesBesideOf<DotKind::kInt8>(block, panel, vectors_here, beside);
        }
        prefetching.from += lines_per_part * steps_here * vectors_here * 64;
      }
    }
  }
  prefetching.bytes = 0;
  for (int done = 0; done < num_rows; done += kRows) {
    Finish<Isa, DotKind::kInt8>(gemm, all_sums + done * kSumStride, first_row + done,
                                num_rows - done < kRows ? num_rows - done : kRows);
  }
}

template <class Isa>
void GemmInt4Tiles(const PanelGemm& gemm) {
  if (gemm.num_rows <= Isa::kTileWidth) return GemmInt4Streamed<Isa>(gemm);
  Prefetching prefetching = NextPanel(gemm);
  for (int first = 0; first < gemm.num_rows; first += kUnpackedRows) {
    const int left = gemm.num_rows - first;
    GemmInt4Kept<Isa>(gemm, first, left < kUnpackedRows ? left : kUnpackedRows, prefetching);
  }
}

}  // namespace convene::kernels::cpu
