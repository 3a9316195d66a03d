#include "kernels/pack.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <span>
#include <vector>

#include "base/check.h"
#include "kernels/quantize_weights.h"
#include "kernels/reference/kernels.h"
#include "tensor/finite.h"

namespace convene::kernels {
namespace {

using tensor::Bf16;

int RoundUpToLanes(int rows) { return (rows + kLanes - 1) / kLanes * kLanes; }

// Columns converted at a time: 16 rows of them fit the first-level cache.
constexpr int kChunkCols = 256;

void Store(float value, float* out) { *out = value; }
void Store(float value, Bf16* out) { *out = tensor::Bf16FromFloat(value); }

void ConvertRow(tensor::DType dtype, const std::byte* from, int count, float* out) {
  tensor::ConvertToFloat(dtype, from, count, out);
}
void ConvertRow(tensor::DType dtype, const std::byte* from, int count, Bf16* out) {
  tensor::ConvertToBf16(dtype, from, count, out);
}

// Columns from `col` on that share a scale.
int ColumnsWithOneScale(const StoredMatrix& source, int64_t stored_row, int col) {
  if (!source.is_transposed) return source.scales.block_cols - col % source.scales.block_cols;
  const auto left = source.scales.block_rows - stored_row % source.scales.block_rows;
  return static_cast<int>((left + source.row_step - 1) / source.row_step);
}

// `count` elements of a row from number `first` on, without their scales.
void LoadUnscaled(const StoredMatrix& source, int64_t first, int count, float* out) {
  if (source.col_stride != 1) {
    for (int i = 0; i < count; ++i) {
      out[i] = tensor::LoadElement(source.dtype, source.data, first + i * source.col_stride);
    }
  } else if (source.dtype == tensor::DType::kE2m1) {
    tensor::FloatsFromE2m1(source.data, first, count, out);
  } else {
    CHECK(source.dtype == tensor::DType::kE4m3, "scales of {}", tensor::Name(source.dtype));
    tensor::FloatsFromE4m3(source.data, first, count, out);
  }
}

// Element times scale, rounded once.
template <typename T>
void LoadScaled(const StoredMatrix& source, int row, int first_col, int count, T* out) {
  for (int done = 0; done < count;) {
    const int col = first_col + done;
    const int64_t in_rows = source.is_transposed ? col : row;
    const int64_t stored_row = source.first_row + in_rows * source.row_step;
    const float scale = source.scales.At(stored_row, source.is_transposed ? row : col);
    const int end =
        std::min({count, done + kChunkCols, done + ColumnsWithOneScale(source, stored_row, col)});
    float elements[kChunkCols];
    LoadUnscaled(source, row * source.row_stride + col * source.col_stride, end - done, elements);
    for (int i = 0; done < end; ++i, ++done) Store(elements[i] * scale, out + done);
  }
}

template <typename T>
void LoadColumns(const StoredMatrix& source, int row, int first_col, int count, T* out) {
  if (!source.scales.data.empty()) return LoadScaled(source, row, first_col, count, out);
  const int64_t element = tensor::SizeBits(source.dtype) / 8;
  const std::byte* from =
      source.data + (row * source.row_stride + first_col * source.col_stride) * element;
  if (source.col_stride == 1) return ConvertRow(source.dtype, from, count, out);
  for (int i = 0; i < count; ++i) {
    ConvertRow(source.dtype, from + i * source.col_stride * element, 1, out + i);
  }
}

// Depth-first layout of one group: kPair consecutive columns of a row lie together. False: not all
// of it is finite.
template <typename T, int kPair>
bool Pack(const RowSource* rows, const PackedPanel& panel, int row_in_panel, T* out_panel) {
  T chunk[kLanes][kChunkCols];
  bool is_finite = true;
  const int padded = panel.padded();
  for (int col = 0; col < padded; col += kChunkCols) {
    const int count = std::min(kChunkCols, padded - col);
    for (int lane = 0; lane < kLanes; ++lane) {
      const int stored = std::clamp(panel.depth - col, 0, count);
      const int loaded = rows[lane].matrix != nullptr ? stored : 0;
      const RowSource& source = rows[lane];
      if (loaded > 0) {
        LoadColumns(*source.matrix, source.row, source.first_col + col, loaded, chunk[lane]);
        is_finite &= tensor::AllFinite(std::span<const T>(chunk[lane], loaded));
      }
      std::fill(chunk[lane] + loaded, chunk[lane] + count, T{0});
    }
    for (int i = 0; i < count; i += kPair) {
      T* out = out_panel + (int64_t{(col + i) / kPair} * panel.width + row_in_panel) * kPair;
      for (int lane = 0; lane < kLanes; ++lane) {
        for (int j = 0; j < kPair; ++j) out[lane * kPair + j] = chunk[lane][i + j];
      }
    }
  }
  return is_finite;
}

// A packed row as floats, zeros where it is padded, and what it is a part of.
class FloatRow {
 public:
  void Load(const RowSource& source, const PackedPanel& panel) {
    row_.assign(panel.padded(), 0.0f);
    whole_.clear();
    const StoredMatrix* matrix = source.matrix;
    if (matrix == nullptr) return;
    LoadRow(*matrix, source.row, source.first_col, panel.depth, row_.data());
    if (matrix->cols <= panel.depth) return;
    whole_.resize(matrix->cols);
    LoadRow(*matrix, source.row, 0, matrix->cols, whole_.data());
  }

  std::span<const float> row() const { return row_; }
  std::span<const float> whole() const { return whole_.empty() ? row_ : whole_; }

 private:
  std::vector<float> row_;
  std::vector<float> whole_;  // empty where it is the row
};

bool PackInt8(const RowSource* rows, const PackedPanel& panel, int row_in_panel, std::byte* out,
              float* scales) {
  const int padded = panel.padded();
  FloatRow source;
  std::vector<int8_t> values(padded);
  bool is_finite = true;
  for (int lane = 0; lane < kLanes; ++lane) {
    source.Load(rows[lane], panel);
    const float scale = QuantizeInt8Row(source.row(), source.whole(), values.data());
    is_finite &= std::isfinite(scale);
    scales[row_in_panel + lane] = scale;
    std::byte* to = out + (row_in_panel + lane) * 4;
    for (int col = 0; col < padded; col += 4) {
      for (int j = 0; j < 4; ++j) to[j] = static_cast<std::byte>(values[col + j] + kInt8Zero);
      to += int64_t{4} * panel.width;
    }
  }
  return is_finite;
}

bool PackInt4(const RowSource* rows, const PackedPanel& panel, int row_in_panel, std::byte* out,
              float* scales) {
  const int padded = panel.padded();
  FloatRow source;
  std::vector<uint8_t> values(padded);
  std::vector<int8_t> group_scales((padded + panel.group - 1) / panel.group);
  bool is_finite = true;
  for (int lane = 0; lane < kLanes; ++lane) {
    source.Load(rows[lane], panel);
    const int in_panel = row_in_panel + lane;
    scales[in_panel] = QuantizeInt4Row(source.row(), source.whole(), panel.group, values.data(),
                                       group_scales.data());
    is_finite &= std::isfinite(scales[in_panel]);
    for (int col = 0; col < padded; col += kInt4Block) {
      const int group = col / panel.group * panel.group;
      std::byte* group_at = out + panel.group_offset(group);
      group_at[in_panel] = static_cast<std::byte>(group_scales[col / panel.group]);
      std::byte* to = group_at + kPanelRows + int64_t{col - group} * panel.width / 2 +
                      row_in_panel * (kInt4Block / 2) + lane * 4;
      for (int line = 0; line < kInt4Block / 8; ++line) {
        const uint8_t* q = values.data() + col + line * 8;
        const int flip = group_scales[col / panel.group] < 0 ? 0xff : 0;  // 15 - q in both halves
        for (int j = 0; j < 4; ++j) {
          to[line * 64 + j] = static_cast<std::byte>((q[j] | q[j + 4] << 4) ^ flip);
        }
      }
    }
  }
  return is_finite;
}

}  // namespace

void LoadRow(const StoredMatrix& source, int row, int first_col, int count, float* out) {
  LoadColumns(source, row, first_col, count, out);
}

bool PackGroup(const RowSource* rows, const PackedMatrix& target, int group,
               std::byte* target_data) {
  const int row = group * kLanes;
  const int row_in_panel = row % kPanelRows;
  const PackedPanel panel = target.panel(row / kPanelRows);
  std::byte* out = target_data + (panel.data - target.data);
  auto* scales = reinterpret_cast<float*>(out + panel.values_bytes());
  switch (target.format) {
    case WeightFormat::kF32:
      return Pack<float, 1>(rows, panel, row_in_panel, reinterpret_cast<float*>(out));
    case WeightFormat::kBf16:
      return Pack<Bf16, 2>(rows, panel, row_in_panel, reinterpret_cast<Bf16*>(out));
    case WeightFormat::kInt8:
      return PackInt8(rows, panel, row_in_panel, out, scales);
    case WeightFormat::kInt4:
      return PackInt4(rows, panel, row_in_panel, out, scales);
  }
  return false;
}

std::optional<int> FirstRowNotFinite(const PackedMatrix& matrix) {
  std::vector<float> row;
  if (!IsInteger(matrix.format)) row.resize(matrix.cols);
  for (int i = 0; i < matrix.rows; ++i) {
    if (IsInteger(matrix.format)) {
      if (!std::isfinite(matrix.panel(i / kPanelRows).scales()[i % kPanelRows])) return i;
    } else {
      UnpackRow(matrix, i, row.data());
      if (!tensor::AllFinite(std::span<const float>(row))) return i;
    }
  }
  return std::nullopt;
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
  const PackedPanel panel = matrix.panel(row / kPanelRows);
  if (matrix.format == WeightFormat::kBf16) {  // embeddings: a row for each token of a step
    const auto* pairs = reinterpret_cast<const Bf16*>(panel.data) + 2 * (row % kPanelRows);
    for (int col = 0; col < matrix.cols; ++col) {
      out[col] = tensor::FloatFromBf16(pairs[2 * int64_t{col / 2} * panel.width + col % 2]);
    }
    return;
  }
  for (int col = 0; col < matrix.cols; ++col) {
    out[col] = reference::PanelElement(panel, row % kPanelRows, col);
  }
}

}  // namespace convene::kernels
