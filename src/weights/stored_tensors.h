// The stored tensors of one stack of a model by what they are, so that a packed matrix can be put
// together from several. Reads no weights but small vectors.
#pragma once

#include <vector>

#include "base/check.h"
#include "checkpoint/checkpoint.h"
#include "weights/stored_matrix.h"

namespace convene::weights {

class StoredTensors {
 public:
  StoredTensors(const checkpoint::Checkpoint& checkpoint, bool encoder) : checkpoint_(checkpoint) {
    const model::ModelSpec& spec = checkpoint.spec();
    per_layer_.resize(encoder ? spec.encoder_layers.size() : spec.layers.size());
    for (const model::TensorBinding& binding : spec.tensors) {
      if (binding.encoder != encoder) continue;
      if (binding.layer < 0) {
        global_.push_back(&binding);
      } else {
        per_layer_[binding.layer].push_back(&binding);
      }
    }
  }

  // Null where the model has no such tensor.
  const model::TensorBinding* Find(model::TensorRole role, int layer = -1, int expert = -1) const {
    for (const model::TensorBinding* binding : layer < 0 ? global_ : per_layer_[layer]) {
      if (binding->role == role && binding->expert == expert) return binding;
    }
    return nullptr;
  }

  const model::TensorBinding& Get(model::TensorRole role, int layer = -1, int expert = -1) const {
    const model::TensorBinding* binding = Find(role, layer, expert);
    CHECK(binding != nullptr, "no tensor of role {} in layer {}", static_cast<int>(role), layer);
    return *binding;
  }

  // As float; empty where there is no such tensor.
  std::vector<float> Vector(model::TensorRole role, int layer = -1, int expert = -1) const {
    const model::TensorBinding* binding = Find(role, layer, expert);
    if (binding == nullptr) return {};
    return ReadVector(checkpoint_, *binding);
  }

  checkpoint::TensorView View(const model::TensorBinding& binding) const {
    return checkpoint_.View(binding);
  }

  kernels::StoredMatrix Matrix(const model::TensorBinding& binding) const {
    return StoredMatrixOf(checkpoint_, binding);
  }

 private:
  const checkpoint::Checkpoint& checkpoint_;
  std::vector<const model::TensorBinding*> global_;
  std::vector<std::vector<const model::TensorBinding*>> per_layer_;
};

}  // namespace convene::weights
