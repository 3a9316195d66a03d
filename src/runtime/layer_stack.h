// The layers of a model, as operators are told them.
#pragma once

#include <vector>

#include "device/layer.h"
#include "model/model_spec.h"

namespace convene::runtime {

// Both keep references to the specs. The encoder's layers use the first decoder layer's part of the
// cache, which gets the decoder's keys and values only afterwards.
inline std::vector<device::Layer> LayersOf(const std::vector<model::LayerSpec>& specs,
                                           bool is_encoder) {
  std::vector<device::Layer> layers;
  for (const model::LayerSpec& spec : specs) {
    const auto index = static_cast<int>(layers.size());
    layers.push_back({.spec = spec,
                      .index = index,
                      .is_encoder = is_encoder,
                      .cache_layer = is_encoder ? 0 : index});
  }
  return layers;
}

}  // namespace convene::runtime
