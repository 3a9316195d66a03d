// Costs of steps on the ranks of a job while no model is loaded: before one is, a plan for it is
// chosen by them. Rank 0 asks, the others answer from within FollowRankZero (ranks.h).
#pragma once

#include "base/result.h"
#include "comm/group.h"
#include "engine/announce_load.h"
#include "engine/known_costs.h"
#include "engine/step_costs_source.h"

namespace convene::engine {

// On rank 0: tells the other ranks and does its part. *Collective*. Errors: as `source`; a number
// of threads that a rank does not have.
Result<KnownCosts> AskForCosts(comm::Group& group, const CostsWish& wish,
                               const StepCostsSource& source);

// On the other ranks, which were told. What goes wrong is rank 0's matter, which is told of it.
void AnswerCosts(comm::Group& group, const CostsWish& wish, const StepCostsSource& source);

}  // namespace convene::engine
