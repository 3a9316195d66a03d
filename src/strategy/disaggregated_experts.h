// Fine-grained disaggregated experts (Pan et al., "FinDEP", 2025): attention, routers and shared
// experts on some ranks, routed experts on others, and between them only rows (A2E) and their sums
// (E2A), micro-batch by micro-batch and chunk by chunk. It builds the schedule for given degrees;
// which degrees are best is a search of planner/.
#pragma once

#include "model/model_spec.h"
#include "schedule/schedule.h"
#include "strategy/step.h"

namespace convene::strategy {

// The order of attention (A) and shared experts (S) of a layer's micro-batches.
enum class AttentionOrder {
  kAsas,  // A0 S0 A1 S1 ...
  kAass,  // all A, then all S
};

struct DisaggregatedExperts {
  int attention_ranks = 1;  // ranks 0 .. attention_ranks - 1, each with its own sequences
  int expert_ranks = 1;     // those after them, each with its own experts
  int micro_batches = 1;    // r1
  int chunks = 1;           // r2: of a micro-batch's rows, each with its experts
  AttentionOrder order = AttentionOrder::kAsas;
  // As in PPPipe: the shared expert counts as part of attention, so dispatch waits for it too.
  bool dispatch_after_shared = false;
  ElementBytes bytes = {};
  int only_rank = -1;  // as StepOptions
};

// A step of a decoder, from tokens to logits. kDispatch is A2E, on the send lanes of all ranks,
// kCombine E2A, on the receive lanes; expert ranks have kExperts and kReduce, all else is done by
// attention ranks. Checked as BuildStep. Precondition: all counts are at least 1, and the model has
// no encoder.
schedule::Schedule BuildDisaggregatedExperts(const model::ModelSpec& spec,
                                             const DisaggregatedExperts& parameters);

}  // namespace convene::strategy
