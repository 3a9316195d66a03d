#include "weights/stored_matrix.h"

#include "checkpoint/mapped_file.h"

namespace convene::weights {

kernels::StoredMatrix StoredMatrixOf(const checkpoint::Checkpoint& checkpoint,
                                     const model::TensorBinding& binding) {
  const checkpoint::TensorView view = checkpoint.View(binding);
  kernels::StoredMatrix matrix{.dtype = view.dtype,
                               .data = view.bytes.data(),
                               .rows = static_cast<int>(binding.rows),
                               .cols = static_cast<int>(binding.cols),
                               .scales = view.scales,
                               .first_row = binding.first_row + binding.row_offset,
                               .row_step = binding.row_step};
  const int64_t row_in_block = binding.transposed ? 1 : binding.cols;
  matrix.row_stride = row_in_block * binding.row_step;
  matrix.col_stride = binding.transposed ? binding.rows * binding.row_step : 1;
  matrix.data += binding.row_offset * row_in_block * tensor::SizeBits(view.dtype) / 8;
  return matrix;
}

std::span<const std::byte> StoredBytes(const kernels::StoredMatrix& matrix, strategy::Part rows,
                                       strategy::Part cols) {
  const int64_t first = rows.first * matrix.row_stride + cols.first * matrix.col_stride;
  const int64_t last =
      first + (rows.size - 1) * matrix.row_stride + (cols.size - 1) * matrix.col_stride;
  const int64_t bits = tensor::SizeBits(matrix.dtype);
  const int64_t begin = first * bits / 8;
  const int64_t end = ((last + 1) * bits + 7) / 8;
  return {matrix.data + begin, static_cast<size_t>(end - begin)};
}

std::vector<float> ReadVector(const checkpoint::Checkpoint& checkpoint,
                              const model::TensorBinding& binding) {
  std::vector<float> values = ToFloats(StoredMatrixOf(checkpoint, binding));
  checkpoint::DontNeed(checkpoint.View(binding).bytes);
  return values;
}

std::vector<float> ToFloats(const kernels::StoredMatrix& matrix) {
  std::vector<float> values(static_cast<size_t>(matrix.rows) * matrix.cols);
  for (int row = 0; row < matrix.rows; ++row) {
    kernels::LoadRow(matrix, row, 0, matrix.cols, &values[static_cast<size_t>(row) * matrix.cols]);
  }
  return values;
}

}  // namespace convene::weights
