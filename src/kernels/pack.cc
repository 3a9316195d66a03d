#include "kernels/pack.h"

#include <algorithm>
#include <cstring>

namespace convene::kernels {
namespace {

using tensor::Bf16;

int RoundUpToLanes(int rows) { return (rows + kLanes - 1) / kLanes * kLanes; }

// Columns converted at a time: 16 rows of them fit the first-level cache.
constexpr int kChunkCols = 256;

template <typename T>
void LoadRow(const StoredMatrix& source, int row, int first_col, int count, T* out) {
  const size_t element = tensor::SizeBytes(source.dtype);
  const std::byte* from = source.data + (row * source.row_stride + first_col * source.col_stride) *
                                            static_cast<int64_t>(element);
  if (source.col_stride == 1) {
    if constexpr (sizeof(T) == 4) {
      tensor::ConvertToFloat(source.dtype, from, count, out);
    } else {
      tensor::ConvertToBf16(source.dtype, from, count, out);
    }
    return;
  }
  for (int i = 0; i < count; ++i) {
    const std::byte* at = from + i * source.col_stride * static_cast<int64_t>(element);
    if constexpr (sizeof(T) == 4) {
      tensor::ConvertToFloat(source.dtype, at, 1, out + i);
    } else {
      tensor::ConvertToBf16(source.dtype, at, 1, out + i);
    }
  }
}

// Depth-first layout of one group: kPair consecutive columns of a row lie together.
template <typename T, int kPair>
void Pack(const RowSource* rows, int cols, int width, int row_in_panel, T* panel) {
  T chunk[kLanes][kChunkCols];
  for (int col = 0; col < cols; col += kChunkCols) {
    const int count = std::min(kChunkCols, cols - col);
    const int padded = (count + kPair - 1) / kPair * kPair;
    for (int lane = 0; lane < kLanes; ++lane) {
      const int loaded = rows[lane].matrix != nullptr ? count : 0;
      if (loaded > 0) LoadRow(*rows[lane].matrix, rows[lane].row, col, count, chunk[lane]);
      std::fill(chunk[lane] + loaded, chunk[lane] + padded, T{0});
    }
    for (int i = 0; i < padded; i += kPair) {
      T* out = panel + (int64_t{(col + i) / kPair} * width + row_in_panel) * kPair;
      for (int lane = 0; lane < kLanes; ++lane) {
        for (int j = 0; j < kPair; ++j) out[lane * kPair + j] = chunk[lane][i + j];
      }
    }
  }
}

}  // namespace

void PackGroup(const RowSource* rows, const PackedMatrix& target, int group,
               std::byte* target_data) {
  const int row = group * kLanes;
  const int panel_idx = row / kPanelRows;
  const int width = target.panel_width(panel_idx);
  std::byte* panel = target_data + target.row_bytes() * kPanelRows * panel_idx;
  if (target.format == WeightFormat::kF32) {
    Pack<float, 1>(rows, target.cols, width, row % kPanelRows, reinterpret_cast<float*>(panel));
  } else {
    Pack<Bf16, 2>(rows, target.cols, width, row % kPanelRows, reinterpret_cast<Bf16*>(panel));
  }
}

int GateUpRows(int intermediate) { return 2 * RoundUpToLanes(intermediate); }

GateUpRow GateUpRowAt(int intermediate, int packed_row) {
  constexpr int kHalf = kPanelRows / 2;
  const int panel = packed_row / kPanelRows;
  const int row_in_panel = packed_row % kPanelRows;
  const int half_width = std::min(kHalf, RoundUpToLanes(intermediate) - panel * kHalf);
  const bool is_up = row_in_panel >= half_width;
  return {.is_up = is_up, .row = panel * kHalf + row_in_panel - (is_up ? half_width : 0)};
}

void UnpackRow(const PackedMatrix& matrix, int row, float* out) {
  const int panel_idx = row / kPanelRows;
  const int width = matrix.panel_width(panel_idx);
  const std::byte* panel = matrix.panel(panel_idx);
  const int row_in_panel = row % kPanelRows;
  if (matrix.format == WeightFormat::kF32) {
    const auto* from = reinterpret_cast<const float*>(panel) + row_in_panel;
    for (int col = 0; col < matrix.cols; ++col) out[col] = from[int64_t{col} * width];
    return;
  }
  const auto* from = reinterpret_cast<const Bf16*>(panel) + 2 * row_in_panel;
  for (int col = 0; col < matrix.cols; ++col) {
    out[col] = tensor::FloatFromBf16(from[2 * int64_t{col / 2} * width + col % 2]);
  }
}

}  // namespace convene::kernels
