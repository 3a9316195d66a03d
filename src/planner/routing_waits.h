// How long ranks wait for each other because a step's routing is not its mean: tokens visit more
// experts of one rank than of another, and those more often, and all wait for that one at the next
// exchange. Sizes as they are expected have all ranks busy alike, and would make expert parallelism
// look better than it is.
#pragma once

#include <vector>

#include "base/result.h"
#include "planner/predict_step.h"
#include "planner/step_pricer.h"

namespace convene::planner {

// By layer, in seconds, of what the step takes longer than with expected sizes: the mean over
// routings that are drawn, the same ones for every plan, of a step without chunks and
// micro-batches. 0 where experts are sliced over all ranks, and with so many tokens that no rank
// gets much more than its part (NumRoutingDraws). Error: the pricer's.
Result<std::vector<double>> RoutingWaits(const StepQuestion& question, const StepPricer& pricer);

}  // namespace convene::planner
