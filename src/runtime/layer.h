// One layer of a stack, as the parts of a forward pass see it.
#pragma once

#include "kernels/kernel_set.h"
#include "model/model_spec.h"
#include "weights/weight_store.h"

namespace convene::runtime {

// Rows [first, first + count) of the buffers: those whose residual stream this rank has.
struct OwnRows {
  int first = 0;
  int count = 0;
};

struct Layer {
  const model::LayerSpec& spec;
  int index = 0;  // in its stack
  bool is_encoder = false;
  int cache_layer = 0;  // of the KV cache, where its keys and values go
  // Of self attention; no table where the stack has none.
  kernels::DistanceBias bias = {};

  weights::LayerId id() const { return {index, is_encoder}; }
};

}  // namespace convene::runtime
