// The plan of commands that run on several ranks and were given none: the best by costs that are
// kept, or measured at the first use, among those that compute what one rank would. The search is
// planner/plan_search.h.
#pragma once

#include <optional>
#include <string>

#include "cli/model_options.h"
#include "comm/group.h"
#include "model/model_spec.h"
#include "plan/plan.h"

namespace convene::cli {

struct DefaultPlan {
  plan::Plan plan;
  std::string words;  // what was chosen and why, for people
};

// On rank 0, before it loads a model. `resolved`: what options say, and otherwise what is usual;
// options that were given are constraints. Nothing where options ask for what costs are not of.
// Where the search finds no plan, `resolved` and why. *Collective* with FollowRankZero
// (engine/ranks.h) where costs have to be looked for: nothing is measured where the layout was
// given, or where ranks share cores, whose costs would say little.
std::optional<DefaultPlan> PlanByDefault(const ModelOptions& options, const model::ModelSpec& spec,
                                         const plan::Plan& resolved, comm::Group& ranks);

}  // namespace convene::cli
