// Ways to divide the work that people know by name, and look for: a search refines the best of
// each, and what it chose is compared with them.
#pragma once

#include "planner/plan_question.h"

namespace convene::planner {

enum class PlanSystem { kOneRank, kTensor, kExpert, kSliced, kHybrid, kDisaggregated, kLayers };
inline constexpr int kNumPlanSystems = 7;

PlanSystem SystemOf(const Candidate& candidate);

}  // namespace convene::planner
