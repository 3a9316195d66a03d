// The layers of a model's stacks, as the parts of a forward pass see them.
#pragma once

#include <vector>

#include "runtime/layer.h"

namespace convene::runtime {

class LayerStacks {
 public:
  // Keeps references to the spec of `weights`.
  explicit LayerStacks(const weights::WeightStore& weights);
  LayerStacks(const LayerStacks&) = delete;
  LayerStacks& operator=(const LayerStacks&) = delete;

  const std::vector<Layer>& decoder() const { return decoder_; }
  const std::vector<Layer>& encoder() const { return encoder_; }  // empty where there is none

 private:
  std::vector<float> decoder_bias_;  // by distance, as DistanceBias
  std::vector<float> encoder_bias_;
  std::vector<Layer> decoder_;
  std::vector<Layer> encoder_;
};

}  // namespace convene::runtime
