#include "weights/stored_matrix.h"

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

std::vector<float> ToFloats(const kernels::StoredMatrix& matrix) {
  std::vector<float> values(static_cast<size_t>(matrix.rows) * matrix.cols);
  for (int row = 0; row < matrix.rows; ++row) {
    kernels::LoadRow(matrix, row, 0, matrix.cols, &values[static_cast<size_t>(row) * matrix.cols]);
  }
  return values;
}

}  // namespace convene::weights
