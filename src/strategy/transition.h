// The transition between two phases whose experts are divided differently: what moves of the
// weights of experts, layer by layer. When to change, and where the weights lie, is not here.
#pragma once

#include "model/model_spec.h"
#include "schedule/schedule.h"
#include "strategy/expert_loads.h"
#include "strategy/role.h"

namespace convene::strategy {

// A kMoveExperts for each layer of the decoder of which something moves, on the send lanes of all
// ranks: each gets those of its experts (or slices of them) of `to` that it has not in `from`, from
// the one rank that has them there. An encoder works in prefill alone, so its experts stay.
// `bytes`: of an element of weights. Both have as many ranks, whose attention stays.
schedule::Schedule BuildTransition(const model::ModelSpec& spec, const Roles& from, const Roles& to,
                                   double bytes);

// A kLoadExperts for each layer of the decoder whose experts change on a rank, on its load lane.
schedule::Schedule BuildLoads(const model::ModelSpec& spec, const ExpertLoads& loads);

// The same behind a step of the decoder in `loads.from`: of each layer once the last task of the
// step that computes with its experts is done. `only_rank`: as StepOptions'.
void AppendLoads(const model::ModelSpec& spec, const ExpertLoads& loads, int only_rank,
                 schedule::Schedule& step);

}  // namespace convene::strategy
