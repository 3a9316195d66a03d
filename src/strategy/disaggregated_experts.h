// Fine-grained disaggregated experts (Pan et al., "FinDEP", 2025): attention, routers and shared
// experts on some ranks, routed experts on others, and between them only rows (A2E) and their sums
// (E2A), micro-batch by micro-batch and chunk by chunk. It builds the schedule for given degrees;
// which degrees are best is a search of planner/.
//
// With one micro-batch and one chunk, and dispatch after the shared expert, it is the naive way, in
// which one group of ranks waits for the other; with several micro-batches of one chunk it is
// PPPipe (Zhu et al., "MegaScale-Infer", 2025); everything else is FinDEP's.
#pragma once

#include "model/model_spec.h"
#include "schedule/schedule.h"
#include "strategy/step.h"
#include "strategy/step_builder.h"
#include "strategy/work.h"

namespace convene::strategy {

// The experts of one micro-batch, layer by layer. kDispatch is A2E, on the send lanes of all ranks,
// kCombine E2A, on the receive lanes; ranks with experts have kExperts and kReduce, all else is
// done by those with attention.
class DisaggregatedStage {
 public:
  // Keeps a reference, also to its options.
  explicit DisaggregatedStage(StepBuilder& step) : step_(step) {}

  // Of a layer with experts, behind its attention. The ranks that own rows are in use, before and
  // afterwards.
  void AddLayer(const LayerWork& work, int layer);
  // Of ranks with experts: the last combine so far.
  const RankTasks& returned() const { return returned_; }

 private:
  RankTasks AddShared(const LayerWork& work, int layer);
  // Counts and the dispatch of each chunk, once `ready` is done.
  std::vector<RankTasks> AddDispatch(const LayerWork& work, int layer, const RankTasks& ready);

  StepBuilder& step_;
  RankTasks returned_;
};

// The same as a whole step, for those who have degrees and no roles.
struct DisaggregatedExperts {
  int attention_ranks = 1;  // ranks 0 .. attention_ranks - 1, each with its own sequences
  int expert_ranks = 1;     // those after them, each with its own experts
  int micro_batches = 1;    // r1
  int chunks = 1;           // r2: of a micro-batch's rows, each with its experts
  AttentionOrder order = AttentionOrder::kAsas;
  bool dispatch_after_shared = false;  // as Pipeline's
  ElementBytes bytes = {};
  int only_rank = -1;  // as StepOptions
};

// A step of a decoder, from tokens to logits, all of whose rows go through the last layer, too.
// Checked as BuildStep, which builds it. Precondition: all counts are at least 1, and the model has
// no encoder.
schedule::Schedule BuildDisaggregatedExperts(const model::ModelSpec& spec,
                                             const DisaggregatedExperts& parameters);

}  // namespace convene::strategy
