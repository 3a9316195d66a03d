// Passes of a model whose weights lie in a host's memory, as schedules of one device: CGOPipe, and
// the schedules that MoE-Lightning compares it with (its Fig. 6). For the simulator alone; CGOPipe
// is strategy/offload_pipeline.h's.
#pragma once

#include "cost/rates.h"
#include "model/model_spec.h"
#include "schedule/schedule.h"

namespace convene::papers {

enum class OffloadOrder {
  kCgo,        // pages of weights between small transfers, attention on the host two ahead
  kS2,         // attention on the host two ahead, weights of a layer as a whole
  kS3,         // attention on the host, nothing beside it; weights as a whole (FlexGen(c))
  kS4,         // attention on the device, keys and values loaded one ahead (FlexGen)
  kLayerwise,  // a layer is loaded when the last one is through; the cache is on the device
               // (DeepSpeed)
};

struct OffloadPass {
  OffloadOrder order = OffloadOrder::kCgo;
  int micro_batches = 1;
  double micro_batch = 1;       // sequences
  double context = 1;           // keys that a generated token sees; of a prompt: its length
  double weights_resident = 0;  // of the streamed weights
  bool is_prompt = false;
  // Weights in memory that is not pinned: of decode, a layer's are loaded when the last one is
  // through, and by the rates' `pageable_link`.
  bool is_pageable = false;
  double cache_passes = 1;  // over keys and values in the host's memory, of its attention
};

// Rates of the machine, alone for this pass.
struct OffloadRates {
  double device_flops = 0;
  double device_memory = 0;
  double host_flops = 0;
  double host_memory = 0;
  double link = 0;           // in each direction
  double pageable_link = 0;  // up, of what is not pinned
};

// Seconds of a pass over all layers of a model with alike layers: few of them are simulated, and
// what a layer more takes is added for the others.
double SecondsOfPass(const model::ModelSpec& spec, const OffloadPass& pass,
                     const OffloadRates& rates);

}  // namespace convene::papers
