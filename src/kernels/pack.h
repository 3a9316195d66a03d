// Packs weight matrices into panels. Where the memory comes from is the caller's matter.
#pragma once

#include <cstddef>
#include <optional>

#include "kernels/packed_matrix.h"
#include "tensor/dtype.h"
#include "tensor/small_floats.h"

namespace convene::kernels {

// A matrix as a checkpoint stores it, at any alignment: element (row, col) is number
// (row * row_stride + col * col_stride) of `data`, times a scale where there are any: that of
// stored element (first_row + row * row_step, col) or, transposed, (first_row + col * row_step,
// row).
struct StoredMatrix {
  tensor::DType dtype = tensor::DType::kF32;
  const std::byte* data = nullptr;
  int64_t row_stride = 0;
  int64_t col_stride = 1;
  int rows = 0;
  int cols = 0;
  tensor::BlockScales scales = {};
  int64_t first_row = 0;
  int row_step = 1;
  bool is_transposed = false;
};

// Columns [first_col, first_col + count) of a row, as float.
void LoadRow(const StoredMatrix& source, int row, int first_col, int count, float* out);

// One packed row's source: as many columns as the packed matrix has, from first_col on; null: a row
// of zeros. Integers are those of the whole row, wherever it is cut (quantize_weights.h).
struct RowSource {
  const StoredMatrix* matrix = nullptr;
  int row = 0;
  int first_col = 0;
};

// Packs rows [kLanes * group, kLanes * (group + 1)) of `target` from `rows` (kLanes). Groups are
// independent, so that threads can share a matrix. `target_data` is target.data, writable. False:
// what was packed, or for integers a whole row of it, is not all finite in the target's format.
[[nodiscard]] bool PackGroup(const RowSource* rows, const PackedMatrix& target, int group,
                             std::byte* target_data);

// The first row that holds NaN or infinity, of integers by their scale. For diagnosis: it reads all
// of the matrix, but of integers the scales alone.
std::optional<int> FirstRowNotFinite(const PackedMatrix& matrix);

// A gate-and-up matrix interleaves two matrices of `intermediate` rows, so that one panel GEMM sees
// both: each panel is gate rows, then as many up rows, both padded to kLanes.
int GateUpRows(int intermediate);

// What packed row `packed_row` of a gate-and-up matrix is: row `row` of gate or of up; row is
// `intermediate` or more for padding.
struct GateUpRow {
  bool is_up = false;
  int row = 0;
};
GateUpRow GateUpRowAt(int intermediate, int packed_row);

// Row `row` (cols floats) of a packed matrix, as for an embedding.
void UnpackRow(const PackedMatrix& matrix, int row, float* out);

}  // namespace convene::kernels
