// Integer weights made what a GEMM multiplies: int4 to bytes, and either to bf16. All exact: an
// int4 weight is a whole number of at most 120, and bf16 holds whole numbers up to 256.
#pragma once

#include "kernels/cpu/tile.h"

namespace convene::kernels::cpu {

// The panel is read once, so it is fetched so many bytes ahead while it is unpacked.
inline constexpr int kUnpackAheadBytes = 4096;

// A block of kInt4Block columns to bytes (columns / 4, width, 4) with kInt8Zero added. `scales`
// (width) are those of the block's group.
template <class Isa>
inline void UnpackInt4Block(const std::byte* block, const std::byte* scales, int width,
                            std::byte* out) {
  for (int row = 0; row < width; row += kLanes) {
    const auto spread = Isa::SpreadInt4Scales(scales + row);
    for (int line = 0; line < 4; ++line) {
      Isa::Prefetch(block + row * 16 + line * 64 + kUnpackAheadBytes);
      Isa::UnpackInt4Line(block + row * 16 + line * 64, spread, out + (2 * line * width + row) * 4,
                          out + ((2 * line + 1) * width + row) * 4);
    }
  }
}

// Columns [first, first + count) of a panel, both multiples of kDepthPadding, as a panel of kKind.
template <class Isa, DotKind kKind>
void Unpack(const PackedPanel& panel, int first, int count, std::byte* out) {
  constexpr int kBytes = kKind == DotKind::kInt8 ? 1 : 2;
  // A division for every block would take a quarter of the time.
  const int group_shift = panel.group > 0 ? __builtin_ctz(static_cast<unsigned>(panel.group)) : 0;
  const int64_t half_width = panel.width / 2;
  alignas(64) std::byte buffer[kInt4Block * kPanelRows];
  for (int col = first; col < first + count; col += kInt4Block) {
    std::byte* to = out + int64_t{col - first} * panel.width * kBytes;
    const std::byte* bytes = panel.data + int64_t{col} * panel.width;
    if (panel.format == WeightFormat::kInt4) {
      const int64_t group_idx = col >> group_shift;
      const std::byte* group =
          panel.data + (group_idx << group_shift) * half_width + group_idx * kPanelRows;
      const std::byte* block = panel.data + col * half_width + (group_idx + 1) * kPanelRows;
      std::byte* target = kKind == DotKind::kInt8 ? to : buffer;
      UnpackInt4Block<Isa>(block, group, panel.width, target);
      bytes = target;
    }
    if constexpr (kKind == DotKind::kBf16) {
      // Four columns of a row lie together in bytes, two in bf16.
      for (int step = 0; step < kInt4Block / 4; ++step) {
        for (int row = 0; row < panel.width; row += kLanes) {
          Isa::Bf16FromBytes(bytes + (step * panel.width + row) * 4,
                             to + (2 * step * panel.width + row) * 4,
                             to + ((2 * step + 1) * panel.width + row) * 4);
        }
      }
    }
  }
}

}  // namespace convene::kernels::cpu
