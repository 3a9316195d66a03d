// A machine's profile refined by traces of steps that ran on it (cost/refine_costs.h): traces tell
// of which ranks, threads and formats they are.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "base/result.h"
#include "cost/machine_profile.h"
#include "cost/refine_costs.h"
#include "drawing/trace.h"

namespace convene::evaluate {

struct RefinedCosts {
  int num_steps = 0;
  cost::Refinement refinement;
};

// The work of the step's tasks as costs are over it, by task. Precondition: the step has parts.
std::vector<cost::TaskParts> PartsOf(const drawing::TracedStep& step);

// How slow the machine was when the step ran, beside `reference`; 1, 1 where the trace does not say
// how fast it was.
cost::MachineState StateOf(const drawing::TracedStep& step, const cost::ReferenceSpeed& reference);

// Replaces costs of steps in `profile`, and returns what was found of each. Errors: a trace that
// does not tell its format, threads or parts of tasks, or of steps of which the profile has no
// costs.
Result<std::vector<RefinedCosts>> RefineProfile(std::span<const drawing::Trace> traces,
                                                cost::MachineProfile* profile);

}  // namespace convene::evaluate
