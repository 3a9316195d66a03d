// The lines of a step with disaggregated experts: seconds of a layer's tasks as a pricer has them
// at some numbers of rows, and straight lines through these (FinDEP, sections 4.1 and 5.2). What is
// made of the lines is disaggregated_pipeline.h.
#pragma once

#include <vector>

#include "base/result.h"
#include "cost/expected_sizes.h"
#include "model/model_spec.h"
#include "planner/disaggregated_pipeline.h"
#include "planner/step_pricer.h"
#include "strategy/attention_sizes.h"
#include "strategy/step.h"

namespace convene::planner {

struct LinesQuestion {
  const model::ModelSpec& spec;  // a decoder with experts
  strategy::Roles roles = {};    // of two kinds of ranks
  strategy::ElementBytes bytes = {};
  // As StepQuestion's; one for all layers or none.
  std::vector<cost::ExpertShares> shares = {};
  // Of each group of attention ranks in the whole step; lines hold from all of their rows down to a
  // small part of them, and are over the rows of a group.
  std::vector<strategy::SequenceRows> sequences = {};
};

struct FittedLines {
  DisaggregatedLines lines = {};
  double least_r2 = 1;     // of the lines, the worst share of the variance that one explains
  double worst_error = 0;  // the largest |line / seconds - 1| at a point
};

// One line for each kind of task, of the slowest rank that has it, through rows of all, half, a
// quarter ... a 64th, so that short and long tasks count alike. Layers without experts are not in
// them; of layers with experts that differ in shape, the mean. Errors: the model has no experts;
// those of the pricer.
Result<FittedLines> FitDisaggregatedLines(const LinesQuestion& question, const StepPricer& pricer);

// The same with keys apart from rows, so that steps with other contexts have lines, too: from the
// question's step and one that is alike but that more tokens are before its rows.
Result<FittedLines> FitLinesByKeys(const LinesQuestion& question, const StepPricer& pricer);

}  // namespace convene::planner
