// How an expert pipeline should divide a step: into how many chunks, of what (tokens or experts),
// or into two micro-batches, or not at all. Each candidate is priced with costs that were measured
// on other models (cost/step_costs.h) and simulated; beside it is the closed form of EPS-MoE
// (closed_form.h). Pure; who measures is evaluate/.
#pragma once

#include <string>
#include <vector>

#include "cost/expected_sizes.h"
#include "cost/step_costs.h"
#include "cost/step_interval.h"
#include "model/model_spec.h"
#include "planner/closed_form.h"
#include "strategy/step.h"

namespace convene::planner {

// A step may be cut into so many where nobody has said into how many.
inline constexpr int kMicroBatchesToChoose = 2;

struct PipelineQuestion {
  const model::ModelSpec& spec;  // with experts
  strategy::Roles roles = {};
  strategy::ElementBytes bytes = {};
  const cost::StepCosts& costs;
  int tokens_per_group = 0;  // of the step that counts: new tokens of each group of ranks
  // How often tokens visit the experts, as it was recorded; empty: all alike.
  cost::ExpertShares shares = {};
  // Into which the step is cut whatever is chosen; 1: it may be cut into two.
  int micro_batches = 1;
};

// All pipelines that are compared: no chunks; then powers of two and numbers between them, up to
// the number of experts of the rank with the fewest, each cut by tokens and by experts; then two
// micro-batches.
std::vector<strategy::Pipeline> PipelineCandidates(const PipelineQuestion& question);

struct PricedPipeline {
  strategy::Pipeline pipeline = {};
  cost::Outline layer = {};  // with experts

  double seconds() const { return layer.seconds; }
};

struct PipelineChoice {
  PricedPipeline chosen;  // as candidates.front(): plain
  PricedPipeline plain;
  PricedPipeline fastest;  // of all candidates, by what is predicted
  // In the order of PipelineCandidates; after it, where cuts make a candidate faster, that one.
  std::vector<PricedPipeline> candidates;
  ClosedForm closed_form;  // for the cut of the fastest one
  cost::Interval gain;     // seconds that the fastest one gains over plain

  double Speedup(const PricedPipeline& of) const {
    return of.seconds() > 0 ? plain.seconds() / of.seconds() : 1;
  }
};

// The fastest candidate, or the simplest of those that it does not surely beat: what the costs'
// errors at held-out points leave open is not worth chunks. Simpler are fewer micro-batches, then
// even chunks, then fewer of them. Error: a kind of task whose cost was not measured.
Result<PipelineChoice> ChoosePipeline(const PipelineQuestion& question);

// Predicted of a layer with experts, with so many tokens per group. Precondition: the question has
// ranks, experts, and costs of all kinds of tasks.
PricedPipeline PricePipeline(const PipelineQuestion& question, const strategy::Pipeline& pipeline,
                             int tokens_per_group);

// Whether the first is faster whatever the costs' errors at held-out points leave open.
bool SurelyBeats(const PricedPipeline& first, const PricedPipeline& second,
                 const cost::StepCosts& costs);

// The number of tokens per group from which on the pipeline surely beats plain; above
// tokens_per_group if nowhere below it.
int FasterFromTokens(const PipelineQuestion& question, const strategy::Pipeline& pipeline);

// "6 chunks of experts", "2 micro-batches", "none"
std::string Words(const strategy::Pipeline& pipeline);

// "pipeline: 6 chunks of tokens from 128 tokens per step (predicted 1.31 x plain; closed form 7)"
std::string Describe(const PipelineChoice& choice, int from_tokens);

}  // namespace convene::planner
