// Names and shapes of a Llama-like decoder's tensors in a checkpoint. Which layers there are and
// what they hold is in the ModelSpec.
#pragma once

#include <string_view>

#include "model/model_spec.h"

namespace convene::model {

// How a family names its feed-forward blocks, below "model.layers.N.".
struct FfnNames {
  std::string_view block = "mlp";
  std::string_view gate = "gate_proj";  // silu is applied to this one
  std::string_view up = "up_proj";
  std::string_view down = "down_proj";
};

// Appends a whole stored tensor (a vector where `cols` is 1 and `is_vector`) to the spec's tensors.
void BindMatrix(ModelSpec& spec, TensorRole role, int layer, int expert, std::string name,
                int64_t rows, int64_t cols);
void BindVector(ModelSpec& spec, TensorRole role, int layer, std::string name, int64_t size);

// Fills spec.tensors, in the order of the computation, from spec.layers.
void BindDecoder(ModelSpec& spec, const FfnNames& names = {});

}  // namespace convene::model
