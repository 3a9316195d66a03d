// The plan of commands that run on several ranks and were given none: the best that the kept
// profile knows of, among those that compute what one rank would. The search is
// planner/plan_search.h.
#pragma once

#include <optional>
#include <string>

#include "cli/model_options.h"
#include "model/model_spec.h"
#include "plan/plan.h"

namespace convene::cli {

struct DefaultPlan {
  plan::Plan plan;
  std::string words;  // what was chosen and why, for people
};

// `resolved`: what options say, and otherwise what is usual; options that were given are
// constraints. Nothing where no profile is kept, and where options ask for what its costs are not
// of. Where the search finds no plan (nobody has measured so many ranks, say), `resolved` and why.
std::optional<DefaultPlan> PlanByDefault(const ModelOptions& options, const model::ModelSpec& spec,
                                         const plan::Plan& resolved);

}  // namespace convene::cli
