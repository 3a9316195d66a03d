// All matrices and vectors of a model by the names that they have in a packed directory, in the
// order in which they lie there. Neither reads nor writes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "weights/model_weights.h"
#include "weights/share.h"

namespace convene::weights {

struct NamedMatrix {
  std::string name;
  const kernels::PackedMatrix* matrix;
  // Whether the next matrix, if any, is of another page. A page is what tasks read together: of a
  // layer the projections, the rest of attention, the router, each routed expert, the shared one;
  // the head; the embedding.
  bool ends_page = true;
};

// In the order of weight_layout.h; of a share (share.h) those that it has.
std::vector<NamedMatrix> Matrices(const ModelWeights& weights);

// Sets where each matrix lies, in the order of Matrices, which has `places.size()` of them. Of two
// that are one, such as tied embeddings, the list has one.
void SetPlaces(std::span<const std::byte* const> places, ModelWeights* weights);

struct NamedVector {
  std::string name;
  std::vector<float>* values;
  int64_t size;  // as the model's tensors say
};

// The norms, biases and sinks that the model has. `weights` are all of its, or those parts of heads
// and experts (PartsOf), whose spec theirs is then.
std::vector<NamedVector> Vectors(ModelWeights& weights, const Share& parts = {});

}  // namespace convene::weights
