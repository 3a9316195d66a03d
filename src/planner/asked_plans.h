// What a search begins with: of so many ranks the usual plan, and the divisions that are possible
// or were asked for; and what is said of a plan before it has a price.
#pragma once

#include <string>
#include <vector>

#include "planner/plan_question.h"

namespace convene::planner {

// Many ranks are on hosts with several each: fewer of them than there are are looked at by halves.
bool IsSearchedNumber(int num_ranks);

plan::Plan UsualPlan(const PlanQuestion& question, int num_ranks);

// The usual one first. A rank with no layer is none.
std::vector<strategy::Layout> LayoutsOf(int num_ranks, int num_layers);

// Of so many ranks, in the divisions that were asked for, if any were.
std::vector<plan::Plan> AskedPlans(const PlanQuestion& question, int num_ranks);

// Whether its division of the work changes what is computed, and was not asked for: then it is
// chosen only with --allow layout.
bool ChangesLayout(const PlanQuestion& question, const plan::Plan& plan);

}  // namespace convene::planner
