// When no plan keeps the limits of goodput, or up with requests that arrive: how near the nearest
// comes.
#pragma once

#include <optional>

#include "base/result.h"
#include "planner/plan_search.h"

namespace convene::planner {

// Nothing: the objective is not goodput, or no plan was rejected for what it takes. Otherwise an
// error that names the plan that comes nearest to the limits, and by which limits it would do: one
// that may be chosen, if there is one.
std::optional<Error> WhyLimitsAreUnmet(PlanSearch& search);

// Nothing: requests do not arrive at a rate, or no plan would do at any. Otherwise an error that
// names the plan that keeps up with the highest rate, and that rate.
std::optional<Error> WhyTooManyArrive(PlanSearch& search);

}  // namespace convene::planner
