// All matrices and vectors of a model by the names that they have in a packed directory, in the
// order in which they lie there. Neither reads nor writes.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "weights/model_weights.h"

namespace convene::weights {

struct NamedMatrix {
  std::string name;
  const kernels::PackedMatrix* matrix;
};

// In the order of weight_layout.h; of a share (share.h) those that it has.
std::vector<NamedMatrix> Matrices(const ModelWeights& weights);

struct NamedVector {
  std::string name;
  std::vector<float>* values;
  int64_t size;  // as the model's tensors say
};

// The norms, biases and sinks that the model has; `weights` are all of its.
std::vector<NamedVector> Vectors(ModelWeights& weights);

}  // namespace convene::weights
