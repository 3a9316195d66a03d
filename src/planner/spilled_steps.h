// How the steps of a workload go through keys and values that lie on a disk but for a part of them,
// as runtime/spilled_kv.h executes them. What that costs is priced like any other task.
#pragma once

#include <optional>
#include <span>

#include "plan/plan.h"
#include "planner/workload_steps.h"
#include "strategy/step.h"

namespace convene::planner {

// Of the memory that is left for experts and for keys and values: parts for the latter that are
// tried.
inline constexpr double kKvShares[] = {0, 0.5, 1};

// KV blocks that a sequence of so many tokens takes, with the one that the scheduler wants to be
// free before it lets another sequence in.
int BlocksOfSequence(double num_tokens);

// Of a step of these sequences where all that run together take so many blocks. None: memory has
// room for all of them. Precondition: one group of ranks.
std::optional<strategy::SpilledKv> SpilledStepOf(const plan::SpilledKv& planned, int num_blocks,
                                                 const StepSequences& groups);

}  // namespace convene::planner
