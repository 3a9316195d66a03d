// A checkpoint's tensors as the matrices that the model means. Packs and decides nothing.
#pragma once

#include <functional>
#include <span>
#include <vector>

#include "checkpoint/checkpoint.h"
#include "kernels/pack.h"
#include "strategy/layout.h"

namespace convene::weights {

// The matrix that `binding` means, in the checkpoint's bytes; valid as long as the checkpoint.
kernels::StoredMatrix StoredMatrixOf(const checkpoint::Checkpoint& checkpoint,
                                     const model::TensorBinding& binding);

// The stored bytes from the first of these elements to the last one, what lies between them among
// them.
std::span<const std::byte> StoredBytes(const kernels::StoredMatrix& matrix, strategy::Part rows,
                                       strategy::Part cols);

// The elements of a vector, whose pages are dropped.
std::vector<float> ReadVector(const checkpoint::Checkpoint& checkpoint,
                              const model::TensorBinding& binding);

// Its elements (rows, cols), row after row.
std::vector<float> ToFloats(const kernels::StoredMatrix& matrix);

// Changes a matrix of the given role, `cols` values per row, between reading and packing: for
// measuring what a change of weights costs. Any thread of the pool that loads.
using MatrixEdit =
    std::function<void(model::TensorRole role, int cols, std::vector<float>& values)>;

}  // namespace convene::weights
