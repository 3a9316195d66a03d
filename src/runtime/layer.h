// One layer of a stack, as the parts of a forward pass see it.
#pragma once

#include "kernels/kernel_set.h"
#include "model/model_spec.h"
#include "weights/model_weights.h"

namespace convene::runtime {

struct Layer {
  const model::LayerSpec& spec;
  const weights::LayerWeights& weights;
  int cache_layer = 0;  // of the KV cache, where its keys and values go
  // Of self attention; no table where the stack has none.
  kernels::DistanceBias bias = {};
};

}  // namespace convene::runtime
