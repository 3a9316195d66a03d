// When no plan keeps the limits of goodput: how near the nearest comes.
#pragma once

#include <optional>

#include "base/result.h"
#include "planner/plan_search.h"

namespace convene::planner {

// Nothing: the objective is not goodput, or no plan was rejected for what it takes. Otherwise an
// error that names the plan that comes nearest to the limits, and by which limits it would do.
std::optional<Error> WhyLimitsAreUnmet(PlanSearch& search);

}  // namespace convene::planner
