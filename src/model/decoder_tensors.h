// Names and shapes of a Llama-like decoder's tensors in a checkpoint. Which layers there are and
// what they hold is in the ModelSpec.
#pragma once

#include <functional>
#include <string>
#include <string_view>

#include "model/model_spec.h"

namespace convene::model {

// How a family names its feed-forward blocks, below "model.layers.N.", and stores its matrices.
struct DecoderNames {
  std::string_view block = "mlp";
  std::string_view gate = "gate_proj";  // the activation is applied to this one
  std::string_view up = "up_proj";
  std::string_view down = "down_proj";
  std::string_view router = "gate";
  std::string_view shared = "shared_expert";
  // Of attention's projections and of dense, shared and expert matrices; the rest is plain.
  Storage storage = Storage::kPlain;
  // Binds the experts' matrices and biases of a layer, where those of several experts share a
  // tensor; `prefix` is "model.layers.N.<block>.".
  std::function<void(ModelSpec& spec, int layer, const std::string& prefix)> bind_experts = {};
};

// Appends a whole stored matrix or vector to the spec's tensors.
void BindMatrix(ModelSpec& spec, TensorRole role, int layer, int expert, std::string name,
                int64_t rows, int64_t cols, Storage storage = Storage::kPlain);
void BindVector(ModelSpec& spec, TensorRole role, int layer, std::string name, int64_t size);

// Fills spec.tensors, in the order of the computation, from spec.layers.
void BindDecoder(ModelSpec& spec, const DecoderNames& names = {});

}  // namespace convene::model
