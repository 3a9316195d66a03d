#include "weights/stored_matrix.h"

namespace convene::weights {

kernels::StoredMatrix StoredMatrixOf(const checkpoint::Checkpoint& checkpoint,
                                     const model::TensorBinding& binding) {
  const checkpoint::TensorView view = checkpoint.View(binding);
  kernels::StoredMatrix matrix{.dtype = view.dtype,
                               .data = view.bytes.data(),
                               .rows = static_cast<int>(binding.rows),
                               .cols = static_cast<int>(binding.cols)};
  matrix.row_stride = binding.transposed ? 1 : binding.cols;
  matrix.col_stride = binding.transposed ? binding.rows : 1;
  return matrix;
}

std::vector<float> ToFloats(const kernels::StoredMatrix& matrix) {
  std::vector<float> values(static_cast<size_t>(matrix.rows) * matrix.cols);
  float* out = values.data();
  for (int row = 0; row < matrix.rows; ++row) {
    for (int col = 0; col < matrix.cols; ++col) {
      const int64_t index = row * matrix.row_stride + col * matrix.col_stride;
      *out++ = tensor::LoadElement(matrix.dtype, matrix.data, static_cast<size_t>(index));
    }
  }
  return values;
}

}  // namespace convene::weights
