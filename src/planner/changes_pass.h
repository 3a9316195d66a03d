// The pass that says of each plan what it would change of the numbers that a model computes, and so
// must be allowed. What of that a plan's layout and wire change is KeepsLogits of plan_question.h.
#pragma once

#include "planner/plan_search.h"

namespace convene::planner {

// Sets `needs` of all candidates. Of their formats all but the first of which a plan fits change
// numbers.
void MarkChanges(PlanSearch& search);

}  // namespace convene::planner
