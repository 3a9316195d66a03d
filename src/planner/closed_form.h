// The closed form of EPS-MoE (section 3.3): into how many chunks a layer's experts should be
// divided, by what their exchanges and their computation take one after the other and what each
// further chunk costs. The planner's own answer is the pipeline whose simulated steps are fastest;
// this one stands beside it.
#pragma once

#include <vector>

#include "base/result.h"
#include "cost/expected_sizes.h"
#include "model/model_spec.h"
#include "planner/predict_step.h"
#include "planner/step_pricer.h"
#include "strategy/step.h"

namespace convene::planner {

// The seconds that N chunks save: gain(N) = min(communication, computation) (N - 1) / N -
// (per_chunk N + once), which is largest at N = sqrt(min(communication, computation) / per_chunk).
struct ClosedForm {
  double communication = 0;  // seconds of a layer's experts, not divided
  double computation = 0;    // of the rank that computes longest
  double per_chunk = 0;      // fixed costs
  double once = 0;
  int chunks = 1;  // within 1 and the experts of a rank

  double Gain(double num_chunks) const;
};

// A step of a model with experts.
struct ClosedFormQuestion {
  const model::ModelSpec& spec;
  strategy::Roles roles = {};
  strategy::ElementBytes bytes = {};
  int tokens_per_group = 0;  // new tokens of each group of ranks
  // How often tokens visit the experts of a layer; empty: all alike.
  cost::ExpertShares shares = {};
  int micro_batches = 1;
};

// Numbers of chunks that are compared: powers of two and what lies halfway, in increasing order; of
// experts up to those of the rank with the fewest.
std::vector<int> ChunksToCompare(const model::ModelSpec& spec, const strategy::Roles& roles,
                                 strategy::ChunkCut cut);

// The fixed costs are those of a line through what the pricer says of these numbers of chunks.
// Error: a kind of task that has no price.
Result<ClosedForm> FitClosedForm(const ClosedFormQuestion& question, const StepPricer& pricer,
                                 strategy::ChunkCut cut);

// The first layer with experts; null: none has.
const model::LayerSpec* LayerWithExperts(const model::ModelSpec& spec);
// So many layers as that one, and nothing else of the model.
model::ModelSpec LayersWithExperts(const model::ModelSpec& spec, int count);
// A step of such layers, of prompts of 512 tokens at most.
StepQuestion QuestionOfLayers(const model::ModelSpec& layers, const ClosedFormQuestion& question,
                              const strategy::Pipeline& pipeline, int tokens_per_group);

}  // namespace convene::planner
