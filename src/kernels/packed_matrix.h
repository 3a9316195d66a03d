// A weight matrix packed into panels for the GEMM kernels. It only points at memory that its owner
// (weights/) keeps alive. How weights get there is pack.h.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>

namespace convene::kernels {

enum class WeightFormat { kF32, kBf16, kInt8, kInt4 };

std::string_view Name(WeightFormat format);
std::optional<WeightFormat> WeightFormatFromName(std::string_view name);

[[gnu::always_inline]] constexpr bool IsInteger(WeightFormat format) {
  return format == WeightFormat::kInt8 || format == WeightFormat::kInt4;
}

// Rows of W (= output channels) in one panel; the last panel holds the rest, rounded up to kLanes.
inline constexpr int kPanelRows = 64;
inline constexpr int kLanes = 16;
// Columns are padded with zeros to a multiple of this, as rows of activations are.
inline constexpr int kDepthPadding = 64;

[[gnu::always_inline]] constexpr int PaddedDepth(int cols) {
  return (cols + kDepthPadding - 1) / kDepthPadding * kDepthPadding;
}

// int4: columns that are multiplied between two uses of a scale, whatever the group.
inline constexpr int kInt4Block = 32;
// An int4 weight is (q - kInt4Zero) times its group's scale, a whole number of at most
// kInt4MaxScale: so it is a whole number that int8 holds too, and int4 is int8 with few values.
// Where the scale is negative, 15 - q is stored: the weight is then (stored - 7) times its
// magnitude, and a stored half times a magnitude is at most 225, so that two products fit 16 bits.
inline constexpr int kInt4Zero = 8;
inline constexpr int kInt4MaxScale = 15;
// Integer weights are stored with this added, as the unsigned operand of the dot product.
inline constexpr int kInt8Zero = 128;

// One panel: `width` rows (16, 32, 48 or 64) of `depth` columns, padded to `padded` columns.
//   kF32:  [padded][width] floats
//   kBf16: [padded / 2][width][2]: pairs along the columns, as the bf16 dot product reads them
//   kInt8: [padded / 4][width][4] bytes, then [width] float scales of the rows
//   kInt4: for each group of columns: [64] signed bytes, the rows' scales (whole numbers), then for
//          each block of 32 columns and each 16 rows: [4][16][4] bytes; byte (i, row, j) holds
//          column 8 i + j in its low and column 8 i + 4 + j in its high half (q, or 15 - q). Then
//          [width] floats: the rows' scales, by which the whole numbers are multiplied.
// Padding is zero (kInt8Zero, kInt4Zero).
struct PackedPanel {
  WeightFormat format = WeightFormat::kF32;
  int group = 0;  // kInt4: columns per scale, 32, 64 or 128
  int width = 0;
  int depth = 0;
  const std::byte* data = nullptr;

  [[gnu::always_inline]] constexpr int padded() const { return PaddedDepth(depth); }
  // Of everything but the float scales.
  [[gnu::always_inline]] constexpr size_t values_bytes() const {
    const auto w = static_cast<size_t>(width);
    const auto p = static_cast<size_t>(padded());
    switch (format) {
      case WeightFormat::kF32:
        return p * w * 4;
      case WeightFormat::kBf16:
        return p * w * 2;
      case WeightFormat::kInt8:
        return p * w;
      case WeightFormat::kInt4:
        return p * w / 2 + (p + group - 1) / group * kPanelRows;
    }
    return 0;
  }
  [[gnu::always_inline]] constexpr size_t size_bytes() const {
    return values_bytes() + (IsInteger(format) ? size_t{4} * width : 0);
  }
  // (width) of an integer format.
  [[gnu::always_inline]] const float* scales() const {
    return reinterpret_cast<const float*>(data + values_bytes());
  }
  // kInt4: where the group that begins at column `col` begins.
  [[gnu::always_inline]] constexpr int64_t group_offset(int col) const {
    return int64_t{col} * width / 2 + int64_t{col} / group * kPanelRows;
  }
};

// W (rows, cols) as panels of kPanelRows rows, one after the other.
struct PackedMatrix {
  WeightFormat format = WeightFormat::kF32;
  int group = 0;  // kInt4: columns per scale
  int rows = 0;
  int cols = 0;
  const std::byte* data = nullptr;  // 64-byte aligned

  int num_panels() const { return (rows + kPanelRows - 1) / kPanelRows; }
  int panel_width(int panel) const {
    const int left = rows - panel * kPanelRows;
    return left >= kPanelRows ? kPanelRows : (left + kLanes - 1) / kLanes * kLanes;
  }
  PackedPanel panel(int panel_idx) const {
    PackedPanel panel{.format = format, .group = group, .width = kPanelRows, .depth = cols};
    panel.data = data + panel.size_bytes() * static_cast<size_t>(panel_idx);
    panel.width = panel_width(panel_idx);
    return panel;
  }
  // A multiple of 64. Needs no data.
  size_t size_bytes() const {
    if (rows == 0) return 0;
    PackedPanel panel{.format = format, .group = group, .width = kPanelRows, .depth = cols};
    const size_t before_last = panel.size_bytes() * static_cast<size_t>(num_panels() - 1);
    panel.width = panel_width(num_panels() - 1);
    return before_last + panel.size_bytes();
  }
};

// Whoever places matrices owns what they point to.
inline std::byte* Writable(const PackedMatrix& matrix) {
  return const_cast<std::byte*>(matrix.data);
}

}  // namespace convene::kernels
