// Makes float panels of int4 panels, for weights that are kept in int4 and computed with in float.
// How they became int4 is quantize_weights.h; who keeps them, weights/expert_backup.h.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/packed_matrix.h"
#include "tensor/dtype.h"

namespace convene::kernels {

// A weight that is kept as it is beside an int4 matrix.
struct Outlier {
  uint16_t col = 0;
  tensor::Bf16 value = 0;
};

// Those of a matrix, row after row: row i has what lies between ends[i - 1] (0 of the first row)
// and ends[i].
struct Outliers {
  const uint32_t* ends = nullptr;  // (rows); null: there are none
  const Outlier* list = nullptr;
};

// `from` in int4 as `target` of as many rows and columns in f32 or bf16 (CHECKed): each weight is
// what UnpackRow gives of it, rounded to bf16 where the target has that, but an outlier is its own
// value; padding is zero. `data` is target.data, writable, and does not overlap with `from`.
void DequantizeInt4(const PackedMatrix& from, const Outliers& outliers, const PackedMatrix& target,
                    std::byte* data);

}  // namespace convene::kernels
