// The primitives of AMX beside AVX-512 with its dot products, for the templates of kernels/cpu.
// Include only from sources compiled for this instruction set.
//
// A tile register holds 16 rows of 64 bytes. A panel's layout is what its dot instructions want as
// their second operand: 16 steps of 4 bytes for 16 columns. Up to 16 rows: 4 tiles of sums side by
// side, one of activations; up to 32: 2 x 2 tiles of sums, each operand loaded is used twice.
#pragma once

#include "kernels/cpu/avx512_bf16/isa.h"
#include "kernels/cpu/blocks.h"

namespace convene::kernels::amx {

// As LDTILECFG reads it.
struct alignas(64) TileConfig {
  uint8_t palette = 1;
  uint8_t start_row = 0;
  uint8_t reserved[14] = {};
  uint16_t row_bytes[16] = {};
  uint8_t rows[16] = {};
};

struct Isa : avx512_bf16::Avx512DotBase<Isa> {
  static constexpr const char* kName = "amx";
  template <cpu::DotKind kKind>
  static constexpr bool kMatrixTiles = kKind != cpu::DotKind::kF32;
  static constexpr int kBlockRows = 32;
  static constexpr int kMostInt4DotRows = 4;

  static constexpr int kTileSteps = 16;  // of 4 bytes
  static constexpr int kTileWidth = 16;  // rows, and columns of sums

  template <cpu::DotKind kKind>
  static void RunMatrixTiles(const cpu::Block& block, const std::byte* prefetch, int64_t lines) {
    Configure(block.num_rows);
    const int64_t depth = block.steps / kTileSteps;
    const int passes = block.num_rows > kTileWidth ? (block.width + 31) / 32 : 1;
    const int64_t lines_per_step = (lines + depth * passes - 1) / (depth * passes);
    if (block.num_rows <= kTileWidth) {
      switch (block.width / kTileWidth) {
        case 4:
          return Wide<kKind, 4>(block, prefetch, lines_per_step);
        case 3:
          return Wide<kKind, 3>(block, prefetch, lines_per_step);
        case 2:
          return Wide<kKind, 2>(block, prefetch, lines_per_step);
        default:
          return Wide<kKind, 1>(block, prefetch, lines_per_step);
      }
    }
    for (int column = 0; column < block.width; column += 2 * kTileWidth) {
      if (block.width - column >= 2 * kTileWidth) {
        Square<kKind, 2>(block, column, prefetch, lines_per_step);
      } else {
        Square<kKind, 1>(block, column, prefetch, lines_per_step);
      }
      prefetch += depth * lines_per_step * 64;
    }
  }

  // Tiles in use keep a core from sleeping deeply and must be saved with a thread's state.
  static void EndMatrixTiles() { asm volatile("tilerelease"); }

 private:
  static void Configure(int num_rows) {
    TileConfig config;
    for (uint16_t& bytes : config.row_bytes) bytes = 0;
    for (int tile = 0; tile < 8; ++tile) config.row_bytes[tile] = 64;
    const auto first = static_cast<uint8_t>(num_rows < kTileWidth ? num_rows : kTileWidth);
    const auto second = static_cast<uint8_t>(num_rows - first);
    if (second == 0) {
      for (int tile = 0; tile < 5; ++tile) config.rows[tile] = first;  // sums, activations
      for (int tile = 5; tile < 8; ++tile) config.rows[tile] = kTileSteps;
    } else {
      config.rows[0] = config.rows[1] = config.rows[4] = first;
      config.rows[2] = config.rows[3] = config.rows[5] = second;
      config.rows[6] = config.rows[7] = kTileSteps;
    }
    // The intrinsic does not tell the compiler how much it reads.
    asm volatile("ldtilecfg %0" : : "m"(config));
  }

  template <cpu::DotKind kKind, int kSums, int kRows, int kColumns>
  static void DotTiles() {
    if constexpr (kKind == cpu::DotKind::kInt8) {
      asm volatile("tdpbsud %%tmm%c2, %%tmm%c1, %%tmm%c0"
                   :
                   : "i"(kSums), "i"(kRows), "i"(kColumns));
    } else {
      asm volatile("tdpbf16ps %%tmm%c2, %%tmm%c1, %%tmm%c0"
                   :
                   : "i"(kSums), "i"(kRows), "i"(kColumns));
    }
  }
  template <int kTile>
  static void LoadTile(const std::byte* from, int64_t stride) {
    asm volatile("tileloadd (%0,%1,1), %%tmm%c2" : : "r"(from), "r"(stride), "i"(kTile) : "memory");
  }
  template <int kTile>
  static void StoreTile(std::byte* to, int64_t stride) {
    asm volatile("tilestored %%tmm%c2, (%0,%1,1)" : : "r"(to), "r"(stride), "i"(kTile) : "memory");
  }
  template <int kTile>
  static void BeginTile(const cpu::Block& block, std::byte* sums) {
    if (block.accumulate) {
      LoadTile<kTile>(sums, block.sum_stride);
    } else {
      asm volatile("tilezero %%tmm%c0" : : "i"(kTile));
    }
  }

  static void PrefetchLines(const std::byte*& prefetch, int64_t lines) {
    for (int64_t line = 0; line < lines; ++line, prefetch += 64) {
      _mm_prefetch(reinterpret_cast<const char*>(prefetch), _MM_HINT_T1);
    }
  }

  template <cpu::DotKind kKind, int kTiles>
  static void Wide(const cpu::Block& block, const std::byte* prefetch, int64_t lines_per_step) {
    const int64_t stride = 4 * block.width;
    const std::byte* rows = block.rows;
    const std::byte* panel = block.panel;
    BeginTile<0>(block, block.sums);
    if constexpr (kTiles > 1) BeginTile<1>(block, block.sums + 64);
    if constexpr (kTiles > 2) BeginTile<2>(block, block.sums + 128);
    if constexpr (kTiles > 3) BeginTile<3>(block, block.sums + 192);
    for (int64_t step = 0; step < block.steps; step += kTileSteps) {
      LoadTile<4>(rows, block.row_stride);
      PrefetchLines(prefetch, lines_per_step / kTiles);
      LoadTile<5>(panel, stride);
      DotTiles<kKind, 0, 4, 5>();
      if constexpr (kTiles > 1) {
        PrefetchLines(prefetch, lines_per_step / kTiles);
        LoadTile<6>(panel + 64, stride);
        DotTiles<kKind, 1, 4, 6>();
      }
      if constexpr (kTiles > 2) {
        PrefetchLines(prefetch, lines_per_step / kTiles);
        LoadTile<7>(panel + 128, stride);
        DotTiles<kKind, 2, 4, 7>();
      }
      if constexpr (kTiles > 3) {
        PrefetchLines(prefetch, lines_per_step / kTiles);
        LoadTile<5>(panel + 192, stride);
        DotTiles<kKind, 3, 4, 5>();
      }
      rows += 64;
      panel += kTileSteps * stride;
    }
    StoreTile<0>(block.sums, block.sum_stride);
    if constexpr (kTiles > 1) StoreTile<1>(block.sums + 64, block.sum_stride);
    if constexpr (kTiles > 2) StoreTile<2>(block.sums + 128, block.sum_stride);
    if constexpr (kTiles > 3) StoreTile<3>(block.sums + 192, block.sum_stride);
  }

  template <cpu::DotKind kKind, int kTiles>
  static void Square(const cpu::Block& block, int column, const std::byte* prefetch,
                     int64_t lines_per_step) {
    const int64_t stride = 4 * block.width;
    const std::byte* upper = block.rows;
    const std::byte* lower = block.rows + kTileWidth * block.row_stride;
    const std::byte* panel = block.panel + column * 4;
    std::byte* sums = block.sums + column * 4;
    std::byte* lower_sums = sums + kTileWidth * block.sum_stride;
    BeginTile<0>(block, sums);
    BeginTile<2>(block, lower_sums);
    if constexpr (kTiles > 1) {
      BeginTile<1>(block, sums + 64);
      BeginTile<3>(block, lower_sums + 64);
    }
    for (int64_t step = 0; step < block.steps; step += kTileSteps) {
      LoadTile<6>(panel, stride);
      LoadTile<4>(upper, block.row_stride);
      PrefetchLines(prefetch, lines_per_step);
      DotTiles<kKind, 0, 4, 6>();
      LoadTile<5>(lower, block.row_stride);
      DotTiles<kKind, 2, 5, 6>();
      if constexpr (kTiles > 1) {
        LoadTile<7>(panel + 64, stride);
        DotTiles<kKind, 1, 4, 7>();
        DotTiles<kKind, 3, 5, 7>();
      }
      upper += 64;
      lower += 64;
      panel += kTileSteps * stride;
    }
    StoreTile<0>(sums, block.sum_stride);
    StoreTile<2>(lower_sums, block.sum_stride);
    if constexpr (kTiles > 1) {
      StoreTile<1>(sums + 64, block.sum_stride);
      StoreTile<3>(lower_sums + 64, block.sum_stride);
    }
  }
};

}  // namespace convene::kernels::amx
