// A weight matrix packed into panels for the GEMM kernels. It only points at memory that its owner
// (weights/) keeps alive.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>

namespace convene::kernels {

enum class WeightFormat { kF32, kBf16 };

std::string_view Name(WeightFormat format);
std::optional<WeightFormat> WeightFormatFromName(std::string_view name);

// Rows of W (= output channels) in one panel; the last panel holds the rest, rounded up to kLanes.
inline constexpr int kPanelRows = 64;
inline constexpr int kLanes = 16;

// W (rows, cols) as panels of kPanelRows rows, one after the other. Inside a panel of `width` rows:
//   kF32:  [cols][width] floats
//   kBf16: [cols / 2][width][2] bf16: pairs along cols, as the bf16 dot product reads them
// Padding rows and the odd last column's partner are zero.
struct PackedMatrix {
  WeightFormat format = WeightFormat::kF32;
  int rows = 0;
  int cols = 0;
  const std::byte* data = nullptr;  // 64-byte aligned

  int num_panels() const { return (rows + kPanelRows - 1) / kPanelRows; }
  int panel_width(int panel) const {
    const int left = rows - panel * kPanelRows;
    return left >= kPanelRows ? kPanelRows : (left + kLanes - 1) / kLanes * kLanes;
  }
  // Bytes per packed row (one output channel).
  size_t row_bytes() const {
    return format == WeightFormat::kF32 ? size_t{4} * cols : size_t{4} * ((cols + 1) / 2);
  }
  const std::byte* panel(int panel_idx) const {
    return data + row_bytes() * kPanelRows * static_cast<size_t>(panel_idx);
  }
  size_t panel_bytes(int panel_idx) const { return row_bytes() * panel_width(panel_idx); }
  size_t size_bytes() const {
    return row_bytes() * static_cast<size_t>((rows + kLanes - 1) / kLanes * kLanes);
  }
};

}  // namespace convene::kernels
