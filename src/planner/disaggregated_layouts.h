// The layouts with attention and experts on different ranks that the search looks at: how many
// ranks have attention, which ones where ranks are not alike (disaggregated_roles.h), and how these
// and the experts are divided. How a layout's steps are divided in time is disaggregated_pass.h's.
#pragma once

#include <vector>

#include "planner/plan_question.h"
#include "planner/workload_steps.h"
#include "strategy/role.h"

namespace convene::planner {

// The most that is solved for: frames for more take memory for next to no gain.
inline constexpr int kMostSolvedMicroBatches = 8;
inline constexpr int kMostSolvedChunks = 32;

// The steps of the workload that pipelines and roles are solved for, with how many there are.
struct TypicalSteps {
  StepSequences prefill;
  double num_prefill = 0;
  StepSequences decode;
  double num_decode = 0;
};
TypicalSteps TypicalStepsOf(const PlanQuestion& question, const strategy::Roles& roles);

// That of the constraints alone, if there is one. Otherwise, for each number of attention ranks,
// the first ranks, and where the profile has rates of each rank the ones that RankRoles gives
// attention; experts evenly and by the rates of those who have them; attention by sequences and by
// heads. Errors of the pricer leave RankRoles's out.
std::vector<strategy::Layout> DisaggregatedLayouts(const PlanQuestion& question,
                                                   const RankSetup& setup);

}  // namespace convene::planner
