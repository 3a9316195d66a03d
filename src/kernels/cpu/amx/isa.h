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

inline constexpr int kMostTileRows = 32;

// Up to 16 rows: tiles 0 to 3 are sums, 4 is activations. More: 0 to 3 are sums, 4 and 5
// activations.
constexpr TileConfig ConfigFor(int num_rows) {
  TileConfig config;
  for (int tile = 0; tile < 8; ++tile) config.row_bytes[tile] = 64;
  const auto first = static_cast<uint8_t>(num_rows < 16 ? num_rows : 16);
  const auto second = static_cast<uint8_t>(num_rows - first);
  if (second == 0) {
    for (int tile = 0; tile < 5; ++tile) config.rows[tile] = first;
    for (int tile = 5; tile < 8; ++tile) config.rows[tile] = 16;
  } else {
    config.rows[0] = config.rows[1] = config.rows[4] = first;
    config.rows[2] = config.rows[3] = config.rows[5] = second;
    config.rows[6] = config.rows[7] = 16;
  }
  return config;
}

struct ConfigTable {
  TileConfig of_rows[kMostTileRows];
};

// Read from memory that was written long ago: LDTILECFG would wait for stores of its own.
inline constexpr ConfigTable kConfigs = [] {
  ConfigTable table;
  for (int row = 0; row < kMostTileRows; ++row) table.of_rows[row] = ConfigFor(row + 1);
  return table;
}();

struct Isa : avx512_bf16::Avx512DotBase<Isa> {
  static constexpr const char* kName = "amx";
  template <cpu::DotKind kKind>
  static constexpr bool kMatrixTiles = kKind != cpu::DotKind::kF32;
  static constexpr int kBlockRows = kMostTileRows;
  static constexpr int kMostInt4DotRows = 3;

  static constexpr int kTileSteps = 16;  // of 4 bytes
  static constexpr int kTileWidth = 16;  // rows, and columns of sums
  static constexpr int kTileBytes = 1024;

  // Weights as tiles of 16 columns and 16 steps: step s, vector v is at At(s) + v * vector_stride.
  struct TilePanel {
    const std::byte* data = nullptr;
    int64_t row_stride = 0;
    int64_t vector_stride = 0;
    int64_t step_stride = 0;
    int64_t step_mask = -1;
    const std::byte* At(int64_t step) const { return data + (step & step_mask) * step_stride; }
    void SkipVectors(int count) { data += count * vector_stride; }
  };

  // The same in pieces of 2^shift steps that lie anywhere.
  struct PiecedPanel {
    const std::byte* const* pieces = nullptr;
    int shift = 0;
    int64_t row_stride = 0;
    int64_t offset = 0;  // in every piece
    // TilePanel has a member of this name, and templates take both.
    // NOLINTNEXTLINE(readability-identifier-naming)
    static constexpr int64_t vector_stride = 64;
    const std::byte* At(int64_t step) const {
      const int64_t in_piece = step & ((int64_t{1} << shift) - 1);
      return pieces[step >> shift] + offset + in_piece * kTileSteps * row_stride;
    }
    void SkipVectors(int count) { offset += count * vector_stride; }
  };

  // After BeginMatrixTiles for as many rows.
  template <cpu::DotKind kKind>
  static void RunMatrixTiles(const cpu::Block& block, const std::byte* prefetch, int64_t lines) {
    const int64_t stride = 4 * block.width;
    RunPanel<kKind>(block, TilePanel{block.panel, stride, 64, kTileSteps * stride}, prefetch,
                    lines);
  }

  // The same against a panel in pieces of 2^shift * kTileSteps steps.
  template <cpu::DotKind kKind>
  static void RunPieces(const cpu::Block& block, const std::byte* const* pieces, int shift) {
    RunPanel<kKind>(block, PiecedPanel{pieces, shift, 4 * block.width}, nullptr, 0);
  }

  // For blocks of so many rows, before RunMatrixTiles or RunTilesBeside.
  static void BeginMatrixTiles(int num_rows) {
    // The intrinsic does not tell the compiler how much it reads.
    asm volatile("ldtilecfg %0" : : "m"(kConfigs.of_rows[num_rows - 1]));
  }

  // Fetches the tiles of the next step into the first-level cache, where their 16 loads wait for
  // nothing, and lines of what comes later into the second-level one. kLineStride: 64 where all
  // vectors of the panel are read in a step: its lines are fetched in their order, which is faster
  // yet; otherwise bytes between the lines of a tile, 0 where only the panel tells. Known here, a
  // line costs one instruction (docs/results/int_gemm.md).
  template <int kLineStride, class Panel = TilePanel>
  struct PrefetchBeside {
    Panel near;
    int64_t steps = 0;
    const std::byte* far = nullptr;
    int64_t far_lines = 0;  // in every part

    [[gnu::always_inline]] void operator()(int64_t step, int part) {
      if (step + 1 < steps) {
        const std::byte* tile =
            near.At(step + 1) + part * (kLineStride == 64 ? kTileBytes : near.vector_stride);
        const int64_t stride = kLineStride > 0 ? kLineStride : near.row_stride;
#pragma GCC unroll 16
        for (int line = 0; line < 16; ++line) Isa::PrefetchNear(tile + line * stride);
      }
      for (int64_t line = 0; line < far_lines; ++line, far += 64) Isa::Prefetch(far);
    }
  };

  // Up to 32 rows against one or two vectors of 16 columns, up to 16 rows against up to four.
  // `beside(step, part)` is called for each vector of each step, between the loads of tiles: what
  // it does runs while the matrix unit multiplies.
  template <cpu::DotKind kKind, int kVectors, class Panel, typename Beside>
  static void RunTilesBeside(const cpu::Block& block, const Panel& panel, Beside beside) {
    if (block.num_rows <= kTileWidth) return Wide<kKind, kVectors>(block, panel, beside);
    if constexpr (kVectors <= 2) Square<kKind, kVectors>(block, panel, beside);
  }
  template <cpu::DotKind kKind, class Panel, typename Beside>
  static void RunTilesBesideOf(const cpu::Block& block, const Panel& panel, int vectors,
                               Beside beside) {
    switch (vectors) {
      case 1:
        return RunTilesBeside<kKind, 1>(block, panel, beside);
      case 2:
        return RunTilesBeside<kKind, 2>(block, panel, beside);
      case 3:
        return RunTilesBeside<kKind, 3>(block, panel, beside);
      default:
        return RunTilesBeside<kKind, 4>(block, panel, beside);
    }
  }

  // Tiles in use keep a core from sleeping deeply and must be saved with a thread's state.
  static void EndMatrixTiles() { asm volatile("tilerelease"); }

 private:
  template <cpu::DotKind kKind, class Panel>
  static void RunPanel(const cpu::Block& block, const Panel& panel, const std::byte* prefetch,
                       int64_t lines) {
    const int vectors = block.width / kTileWidth;
    const int vectors_at_once = block.num_rows > kTileWidth ? 2 : 4;
    if (vectors <= vectors_at_once) {
      RunVectors<kKind, 64>(block, panel, vectors, prefetch, lines);
    } else if (block.width == kPanelRows) {
      RunVectors<kKind, 4 * kPanelRows>(block, panel, vectors_at_once, prefetch, lines);
    } else {
      RunVectors<kKind, 0>(block, panel, vectors_at_once, prefetch, lines);
    }
  }
  template <cpu::DotKind kKind, int kLineStride, class Panel>
  static void RunVectors(cpu::Block block, Panel panel, int at_once, const std::byte* prefetch,
                         int64_t lines) {
    const int vectors = block.width / kTileWidth;
    const int64_t steps = block.steps / kTileSteps;
    PrefetchBeside<kLineStride, Panel> beside{panel, steps, prefetch,
                                              (lines + steps * vectors - 1) / (steps * vectors)};
    for (int vector = 0; vector < vectors; vector += at_once) {
      const int count = vectors - vector < at_once ? vectors - vector : at_once;
      RunTilesBesideOf<kKind>(block, panel, count, beside);
      block.sums += 64 * count;
      panel.SkipVectors(count);
      beside.near.SkipVectors(count);
      beside.far += steps * count * beside.far_lines * 64;
    }
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

  template <cpu::DotKind kKind, int kTiles, class Panel, typename Beside>
  static void Wide(const cpu::Block& block, const Panel& panel, Beside& beside) {
    const std::byte* rows = block.rows;
    BeginTile<0>(block, block.sums);
    if constexpr (kTiles > 1) BeginTile<1>(block, block.sums + 64);
    if constexpr (kTiles > 2) BeginTile<2>(block, block.sums + 128);
    if constexpr (kTiles > 3) BeginTile<3>(block, block.sums + 192);
    const int64_t steps = block.steps / kTileSteps;
    for (int64_t step = 0; step < steps; ++step) {
      const std::byte* tiles = panel.At(step);
      LoadTile<4>(rows, block.row_stride);
      beside(step, 0);
      LoadTile<5>(tiles, panel.row_stride);
      DotTiles<kKind, 0, 4, 5>();
      if constexpr (kTiles > 1) {
        LoadTile<6>(tiles + panel.vector_stride, panel.row_stride);
        beside(step, 1);
        DotTiles<kKind, 1, 4, 6>();
      }
      if constexpr (kTiles > 2) {
        LoadTile<7>(tiles + 2 * panel.vector_stride, panel.row_stride);
        beside(step, 2);
        DotTiles<kKind, 2, 4, 7>();
      }
      if constexpr (kTiles > 3) {
        LoadTile<5>(tiles + 3 * panel.vector_stride, panel.row_stride);
        beside(step, 3);
        DotTiles<kKind, 3, 4, 5>();
      }
      rows += 64;
    }
    StoreTile<0>(block.sums, block.sum_stride);
    if constexpr (kTiles > 1) StoreTile<1>(block.sums + 64, block.sum_stride);
    if constexpr (kTiles > 2) StoreTile<2>(block.sums + 128, block.sum_stride);
    if constexpr (kTiles > 3) StoreTile<3>(block.sums + 192, block.sum_stride);
  }

  template <cpu::DotKind kKind, int kTiles, class Panel, typename Beside>
  static void Square(const cpu::Block& block, const Panel& panel, Beside& beside) {
    const std::byte* upper = block.rows;
    const std::byte* lower = block.rows + kTileWidth * block.row_stride;
    std::byte* sums = block.sums;
    std::byte* lower_sums = sums + kTileWidth * block.sum_stride;
    BeginTile<0>(block, sums);
    BeginTile<2>(block, lower_sums);
    if constexpr (kTiles > 1) {
      BeginTile<1>(block, sums + 64);
      BeginTile<3>(block, lower_sums + 64);
    }
    const int64_t steps = block.steps / kTileSteps;
    for (int64_t step = 0; step < steps; ++step) {
      const std::byte* tiles = panel.At(step);
      LoadTile<6>(tiles, panel.row_stride);
      LoadTile<4>(upper, block.row_stride);
      beside(step, 0);
      DotTiles<kKind, 0, 4, 6>();
      LoadTile<5>(lower, block.row_stride);
      DotTiles<kKind, 2, 5, 6>();
      if constexpr (kTiles > 1) {
        LoadTile<7>(tiles + panel.vector_stride, panel.row_stride);
        beside(step, 1);
        DotTiles<kKind, 1, 4, 7>();
        DotTiles<kKind, 3, 5, 7>();
      }
      upper += 64;
      lower += 64;
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
