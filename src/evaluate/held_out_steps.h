// How well costs predict whole steps that had no part in them: the errors that intervals of
// predictions are made of.
#pragma once

#include <optional>
#include <span>

#include "cost/fit_step_costs.h"
#include "cost/step_costs.h"
#include "cost/task_cost.h"

namespace convene::evaluate {

// Whole steps with overlap, simulated at these costs, each without what it said itself of them: of
// each the round with the median error. None: there are no such steps.
std::optional<cost::HeldOut> TryOnOverlapped(std::span<const cost::SampledStep> steps,
                                             const cost::StepCosts& costs);

// What StepCosts::interval_stretch is. All steps of a model are predicted by those of the other
// models, and nine steps in ten lie in an interval that is so many times as wide as the errors of
// kinds of tasks make it (conformal prediction, as of Papadopoulos et al. 2002, with the spread as
// its normaliser). 1 where all steps are of one model. Special steps do not count
// (SampledStep::is_special).
double IntervalStretch(std::span<const cost::SampledStep> steps, const cost::StepCosts& costs);

}  // namespace convene::evaluate
