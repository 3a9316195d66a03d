// Packs weight matrices into panels. Where the memory comes from is the caller's matter.
#pragma once

#include <cstddef>

#include "kernels/packed_matrix.h"
#include "tensor/dtype.h"

namespace convene::kernels {

// A matrix as a checkpoint stores it, at any alignment: element (row, col) is number
// (row * row_stride + col * col_stride) of `data`.
struct StoredMatrix {
  tensor::DType dtype = tensor::DType::kF32;
  const std::byte* data = nullptr;
  int64_t row_stride = 0;
  int64_t col_stride = 1;
  int rows = 0;
  int cols = 0;
};

// Packs rows [16 g, 16 g + 16) of `target`, a group of kLanes packed rows: row i of the group comes
// from row first_row + i of `source`, zero where the source has no such row. Groups are
// independent, so that threads can share a matrix.
void PackGroup(const StoredMatrix& source, int first_row, const PackedMatrix& target, int group,
               std::byte* target_data);

// The packed row (row >= 0) of a gate-and-up matrix that holds row `row` of gate or of up: each
// panel is gate rows, then as many up rows, so that one panel GEMM sees both. The packed matrix has
// GateUpRows(intermediate) rows.
int GateUpRows(int intermediate);

// First packed row of the group of 16 that holds gate (or up) rows [16 g, 16 g + 16).
int GateUpGroupRow(int intermediate, int group, bool up);

// Row `row` (cols floats) of a packed matrix, as for an embedding.
void UnpackRow(const PackedMatrix& matrix, int row, float* out);

}  // namespace convene::kernels
