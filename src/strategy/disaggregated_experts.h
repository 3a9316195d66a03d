// Fine-grained disaggregated experts (Pan et al., "FinDEP", 2025): attention on some ranks, routed
// experts on others, micro-batches and chunks of their tokens pipelined between them. It builds the
// schedule for given degrees; which degrees are best is a search of planner/.
#pragma once

#include "schedule/schedule.h"

namespace convene::strategy {

// The order of attention (A) and shared experts (S) of a layer's micro-batches.
enum class AttentionOrder {
  kAsas,  // A0 S0 A1 S1 ...
  kAass,  // all A, then all S
};

struct DisaggregatedExperts {
  int num_layers = 1;
  int attention_ranks = 1;  // ranks 0 .. attention_ranks - 1
  int expert_ranks = 1;     // those after them
  int micro_batches = 1;    // r1: of an attention rank's sequences
  int chunks = 1;           // r2: of a micro-batch's tokens, each with its experts
  AttentionOrder order = AttentionOrder::kAsas;
  bool shared_expert = true;
  // As in PPPipe: the shared expert counts as part of attention, so dispatch waits for it too.
  bool dispatch_after_shared = false;
  // Of one task on one rank: of a micro-batch for attention and the shared expert, of a chunk for
  // the others. Chunks cut tokens, so all are alike.
  schedule::Work attention = {};
  schedule::Work shared = {};
  schedule::Work dispatch = {};  // of an attention rank; expert ranks send nothing
  schedule::Work experts = {};   // of an expert rank
  schedule::Work combine = {};   // of an expert rank
};

// The layers of one step: kAttention (router included) and kShared on attention ranks, kExperts on
// expert ranks, kDispatch (A2E) on the send lanes of all, kCombine (E2A) on the receive lanes.
// Precondition: all counts are at least 1.
schedule::Schedule BuildDisaggregatedExperts(const DisaggregatedExperts& parameters);

}  // namespace convene::strategy
