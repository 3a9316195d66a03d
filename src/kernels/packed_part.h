// Takes parts of packed matrices over into others as they are: elements, whole numbers and their
// scales are copied, and nothing is rounded, so that a matrix can be cut and put together again
// without a loss. Which parts of experts go where is weights/expert_parts.h.
//
// What a part has for scales are those of the whole row, as if it had been packed as a part
// (quantize_weights.h); so it is the same, to the bit, whether it was packed or taken over.
#pragma once

#include <cstddef>

#include "kernels/packed_matrix.h"

namespace convene::kernels {

// `data` is the target's, writable, and neither lies in the other. Several threads may fill
// different parts of one target.

// Rows [first, first + count) of `from`, and the place of the first of them in `target`. `gated`:
// of both matrices that a gate-and-up matrix interleaves (pack.h), counted in each.
struct PartOfRows {
  const PackedMatrix& from;
  int first = 0;
  int target_first = 0;
  int count = 0;
  bool gated = false;
};
void TakeRows(const PartOfRows& part, const PackedMatrix& target, std::byte* data);

// Columns [first, first + count) of all rows of `from`, and the place of the first of them in
// `target`, which has as many rows. Of int4 whole groups, but for the last one of both (CHECKed).
struct PartOfColumns {
  const PackedMatrix& from;
  int first = 0;
  int target_first = 0;
  int count = 0;
};
void TakeColumns(const PartOfColumns& part, const PackedMatrix& target, std::byte* data);

// Whether `matrix` has bytes that no part fills; PackZeros, as if all its rows were zeros, gives
// them what packing does.
bool HasPadding(const PackedMatrix& matrix, bool gated, int count);
void PackZeros(const PackedMatrix& matrix, std::byte* data);

}  // namespace convene::kernels
