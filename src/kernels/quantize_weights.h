// How rows of float weights become whole numbers with scales. Where those lie in memory is pack.h.
#pragma once

#include <cstdint>
#include <span>

namespace convene::kernels {

// Rows may be a part of a `whole` row, whose largest value gives the scale: so the numbers of a
// part do not depend on where a matrix is cut.

// A row as int8 with one scale: the whole row's largest magnitude becomes 127. Returns the scale,
// which is not finite if the whole row is not; the values then mean nothing. So below.
float QuantizeInt8Row(std::span<const float> row, std::span<const float> whole, int8_t* values);

// A row as int4: values q in [0, 15] and, per group of `group` columns (32, 64 or 128), a whole
// number s of magnitude 1 to kInt4MaxScale, so that (q - kInt4Zero) * s * returned scale is close
// to the weight. Of the candidates for s the one with the least squared error is taken; its sign
// decides which side has the eighth step. `values` (row.size()), `scales` (one per group). Groups
// begin with `row`: a part has those of the whole row where it begins and ends with a group.
float QuantizeInt4Row(std::span<const float> row, std::span<const float> whole, int group,
                      uint8_t* values, int8_t* scales);

}  // namespace convene::kernels
