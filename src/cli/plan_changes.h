// What a plan computes otherwise than one rank with the weights that would fit, and by how much as
// far as that was measured: plans that --allow admits, for people.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "planner/plan_search.h"

namespace convene::cli {

// "it sums in another order, which changes logits by ..."; none where nothing is computed
// otherwise. `usual_format`: of the weights where --allow says nothing of them.
std::vector<std::string> ChangesOf(const planner::PlanQuestion& question,
                                   const planner::Candidate& candidate,
                                   std::string_view usual_format);
// As a sentence's parts, "" where there are none.
std::string JoinedChangesOf(const planner::PlanQuestion& question,
                            const planner::Candidate& candidate, std::string_view usual_format);

}  // namespace convene::cli
