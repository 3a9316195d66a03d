// What passes of a model take whose weights lie in a host's memory, simulated: of decode in the
// orders that MoE-Lightning compares (its Fig. 6; strategy/offload_pipeline.h), and of prompts,
// whose schedules are for the simulator alone.
#pragma once

#include "cost/rates.h"
#include "model/model_spec.h"
#include "strategy/offload_pipeline.h"

namespace convene::papers {

using strategy::OffloadOrder;

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
