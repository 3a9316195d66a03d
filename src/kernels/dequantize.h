// Makes float panels of int4 panels, for weights that are kept in int4 and computed with in float.
// How they became int4 is quantize_weights.h; who keeps them, weights/expert_backup.h.
#pragma once

#include <cstddef>

#include "kernels/packed_matrix.h"

namespace convene::kernels {

// `from` in int4 as `target` of as many rows and columns in f32 or bf16 (CHECKed): each weight is
// what UnpackRow gives of it, rounded to bf16 where the target has that, and padding is zero.
// `data` is target.data, writable, and does not overlap with `from`.
void DequantizeInt4(const PackedMatrix& from, const PackedMatrix& target, std::byte* data);

}  // namespace convene::kernels
