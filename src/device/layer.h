// One layer of a stack, and which rows of it a rank has, as operators are told them.
#pragma once

#include "model/model_spec.h"
#include "weights/weight_store.h"

namespace convene::device {

// Rows [first, first + count) of a frame: those whose residual stream this rank has.
struct OwnRows {
  int first = 0;
  int count = 0;
};

struct Layer {
  const model::LayerSpec& spec;
  int index = 0;  // in its stack
  bool is_encoder = false;
  int cache_layer = 0;  // of the KV cache, where its keys and values go

  weights::LayerId id() const { return {index, is_encoder}; }
};

}  // namespace convene::device
