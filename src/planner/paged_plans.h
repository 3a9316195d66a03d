// The plans of a rank whose experts, and keys and values, may lie on a disk: what of them stays in
// memory is what there is room for.
#pragma once

#include <cstdint>
#include <vector>

#include "base/result.h"
#include "planner/plan_question.h"

namespace convene::planner {

struct PagedPlans {
  Result<plan::Plan> experts;       // keys and values in memory; error: there is no room
  std::vector<plan::Plan> spilled;  // besides, keys and values of a batch on the disk
};

// Of `batch` sequences that run together. `whole`: the plan with everything in memory.
// Preconditions: plan::CanPage, and PlanQuestion::experts_that_fit.
PagedPlans PagedPlansOf(const PlanQuestion& question, const RankSetup& setup,
                        const plan::Plan& whole, int batch, uint64_t memory_bytes);

}  // namespace convene::planner
