// How long a step will take, by what a pricer knows of a machine: its schedule at expected sizes,
// priced and simulated. Which steps a workload has is not here (workload_steps.h). Pure.
#pragma once

#include <vector>

#include "base/result.h"
#include "cost/expected_sizes.h"
#include "cost/step_interval.h"
#include "model/model_spec.h"
#include "planner/step_pricer.h"
#include "schedule/timeline.h"
#include "strategy/attention_sizes.h"
#include "strategy/step.h"

namespace convene::planner {

struct StepQuestion {
  const model::ModelSpec& spec;  // as all ranks together have it
  strategy::StepOptions options = {};
  // The sequences of each group of ranks (Roles::num_groups), in the order of the step.
  std::vector<std::vector<strategy::SequenceRows>> groups = {};
  // How likely a token visits each expert, by layer (or one entry for all); none: all alike.
  std::vector<cost::ExpertShares> shares = {};
  bool is_encoder = false;  // a step of the encoder, whose inputs the sequences then are

  // That a step passes through.
  const std::vector<model::LayerSpec>& layers() const {
    return is_encoder ? spec.encoder_layers : spec.layers;
  }
};

struct PredictedStep {
  double seconds = 0;
  double once_seconds = 0;        // of them, what a step takes besides its tasks
  double extrapolated_share = 0;  // of tasks' seconds, at sizes beyond what is known
  // Of them, by layer, what ranks wait for each other since routing is not its mean
  // (routing_waits.h); the timeline is of expected sizes and does not have it.
  std::vector<double> routing_waits;
  schedule::Schedule schedule;
  schedule::Timeline timeline;
};

// Errors: a kind of task of which the pricer knows nothing; groups that are not as many as the
// roles'.
Result<PredictedStep> PredictStep(const StepQuestion& question, const StepPricer& pricer);

// What the interval of the step is made of (cost/step_interval.h).
cost::Outline OutlineOf(const PredictedStep& step);

// What is expected of the question's step: for prices, and for those who compare with a run.
cost::ExpectedSizes ExpectSizes(const StepQuestion& question);

}  // namespace convene::planner
