// A checkpoint's tensors as the matrices that the model means. Packs and decides nothing.
#pragma once

#include <functional>
#include <vector>

#include "checkpoint/checkpoint.h"
#include "kernels/pack.h"

namespace convene::weights {

// The matrix that `binding` means, in the checkpoint's bytes; valid as long as the checkpoint.
kernels::StoredMatrix StoredMatrixOf(const checkpoint::Checkpoint& checkpoint,
                                     const model::TensorBinding& binding);

// Its elements (rows, cols), row after row.
std::vector<float> ToFloats(const kernels::StoredMatrix& matrix);

// Changes a matrix of the given role, `cols` values per row, between reading and packing: for
// measuring what a change of weights costs. Any thread of the pool that loads.
using MatrixEdit =
    std::function<void(model::TensorRole role, int cols, std::vector<float>& values)>;

}  // namespace convene::weights
