// Few rows of int8 activations against int4 weights as they lie in memory: what decoding does.
//
// A block's sum over 32 columns of activation times (q - 8) fits in 16 bits (32 * 8 * 127), so it
// is multiplied by the group's whole-number scale with one 16-bit dot instruction, and everything
// stays whole: the result is the one that unpacking gives, bit for bit. Per 16 outputs and block: 8
// dot instructions of bytes, 1 of 16 bits, 4 loads and 12 operations to take the halves apart.
#pragma once

#include "kernels/cpu/epilogue.h"
#include "kernels/cpu/stream.h"

namespace convene::kernels::cpu {

// kInTurn: of several panels, one behind the other in memory, a block of each in turn, as
// panels_in_turn.h has it. The sums then wait in memory.
enum class Int4Reading { kPlain, kAhead, kInTurn };

template <class Isa, int kRows, int kVectors, Int4Reading kReading>
[[gnu::noinline]] void RunInt4Tile(const PanelGemm& gemm, int num_panels, int first_row,
                                   int first_vector, std::byte* sums) {
  constexpr bool kAhead = kReading == Int4Reading::kAhead;
  constexpr bool kInTurn = kReading == Int4Reading::kInTurn;
  const PackedPanel& panel = gemm.weights;
  const int padded = panel.padded();
  const auto panel_bytes = static_cast<int64_t>(panel.size_bytes());
  const int64_t sums_bytes = gemm.num_rows * kSumStride;
  const std::byte* rows[kRows];
  const int32_t* block_sums[kRows];
#pragma GCC unroll 8
  for (int row = 0; row < kRows; ++row) {
    rows[row] = gemm.rows + (first_row + row) * gemm.row_stride;
    block_sums[row] = BlockSums(rows[row], padded);
  }
  typename Isa::Ints totals[kRows][kVectors];
#pragma GCC unroll 8
  for (int row = 0; row < kRows; ++row) {
#pragma GCC unroll 8
    for (int vector = 0; vector < kVectors; ++vector) totals[row][vector] = Isa::ZeroInts();
  }
  const std::byte* at = panel.data;
  const int block_bytes = kInt4Block / 2 * panel.width;
  for (int group = 0; group < padded; group += panel.group) {
    const std::byte* group_scales = at + first_vector * kLanes;
    if constexpr (kAhead) Isa::Prefetch(AheadOf(gemm, at));
    at += kPanelRows;
    const int end = group + panel.group < padded ? group + panel.group : padded;
    for (int col = group; col < end; col += kInt4Block) {
      const std::byte* first_block = at + first_vector * 256;
      const std::byte* ahead = kAhead ? AheadOf(gemm, first_block) : nullptr;
      at += block_bytes;
      for (int turn = 0; turn < (kInTurn ? num_panels : 1); ++turn) {
        const std::byte* scales = group_scales + turn * panel_bytes;
        const std::byte* block = first_block + turn * panel_bytes;
        std::byte* turn_sums = sums + turn * sums_bytes + first_vector * 64;
#pragma GCC unroll 8
        for (int vector = 0; vector < kVectors; ++vector) {
          const auto scale = Isa::LoadInt4Scales(scales + vector * kLanes);
          typename Isa::Ints dots[kRows];
#pragma GCC unroll 8
          for (int row = 0; row < kRows; ++row) {
            dots[row] = Isa::BeginInt4Dot(scale, block_sums[row][col / kInt4Block]);
          }
#pragma GCC unroll 8
          for (int line = 0; line < 4; ++line) {
            const std::byte* from = block + vector * 256 + line * 64;
            if constexpr (kAhead) Isa::Prefetch(ahead + vector * 256 + line * 64);
            const auto packed = Isa::LoadInts(from);
            const auto low = Isa::LowHalves(packed);
            const auto high = Isa::HighHalves(packed);
#pragma GCC unroll 8
            for (int row = 0; row < kRows; ++row) {
              const std::byte* activations = rows[row] + col + line * 8;
              dots[row] = Isa::DotBytes(dots[row], low, activations);
              dots[row] = Isa::DotBytes(dots[row], high, activations + 4);
            }
          }
#pragma GCC unroll 8
          for (int row = 0; row < kRows; ++row) {
            std::byte* total = turn_sums + row * kSumStride + vector * 64;
            if constexpr (kInTurn) {
              const auto before = col == 0 ? Isa::ZeroInts() : Isa::LoadInts(total);
              Isa::StoreInts(total, Isa::DotWords(before, dots[row], scale));
            } else {
              totals[row][vector] = Isa::DotWords(totals[row][vector], dots[row], scale);
            }
          }
        }
      }
    }
  }
  for (int turn = 0; turn < (kInTurn ? num_panels : 1); ++turn) {
#pragma GCC unroll 8
    for (int row = 0; row < kRows; ++row) {
      const auto bias = Isa::BroadcastInt(StoredBias(*RowEnd(rows[row], padded)));
#pragma GCC unroll 8
      for (int vector = 0; vector < kVectors; ++vector) {
        std::byte* total =
            sums + turn * sums_bytes + row * kSumStride + (first_vector + vector) * 64;
        if constexpr (kInTurn) totals[row][vector] = Isa::LoadInts(total);
        Isa::StoreInts(total, Isa::AddInts(totals[row][vector], bias));
      }
    }
  }
}

// Rows of a tile: with more, sums do not fit the registers.
inline constexpr int kInt4DotRows = 4;

// Rows [first_row, first_row + num_rows), at most kInt4DotRows, against so many panels. `sums`
// (num_panels, gemm.num_rows): of the first of these rows.
template <class Isa>
void RunInt4Rows(const PanelGemm& gemm, int num_panels, int first_row, int num_rows,
                 std::byte* sums) {
  const int num_vectors = gemm.weights.width / kLanes;
  const auto run = [&]<int kRows>(std::integral_constant<int, kRows>) {
    if (num_panels > 1) {
      return RunInt4Tile<Isa, kRows, 4, Int4Reading::kInTurn>(gemm, num_panels, first_row, 0, sums);
    }
    if (num_vectors == 4) {
      return gemm.streaming.ahead_bytes > 0
                 ? RunInt4Tile<Isa, kRows, 4, Int4Reading::kAhead>(gemm, 1, first_row, 0, sums)
                 : RunInt4Tile<Isa, kRows, 4, Int4Reading::kPlain>(gemm, 1, first_row, 0, sums);
    }
    for (int vector = 0; vector < num_vectors; ++vector) {
      RunInt4Tile<Isa, kRows, 1, Int4Reading::kAhead>(gemm, 1, first_row, vector, sums);
    }
  };
  switch (num_rows) {
    case 1:
      return run(std::integral_constant<int, 1>());
    case 2:
      return run(std::integral_constant<int, 2>());
    case 3:
      return run(std::integral_constant<int, 3>());
    default:
      return run(std::integral_constant<int, 4>());
  }
}

template <class Isa>
void GemmInt4Dot(const PanelGemm& gemm) {
  alignas(64) std::byte sums[kInt4DotRows * kSumStride];
  for (int done = 0; done < gemm.num_rows; done += kInt4DotRows) {
    const int num_rows = gemm.num_rows - done < kInt4DotRows ? gemm.num_rows - done : kInt4DotRows;
    RunInt4Rows<Isa>(gemm, 1, done, num_rows, sums);
    Finish<Isa, DotKind::kInt8>(gemm, sums, done, num_rows);
  }
}

}  // namespace convene::kernels::cpu
