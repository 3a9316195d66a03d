// The transition between two phases whose experts are divided differently: what moves of the
// weights of experts, layer by layer. When to change, and where the weights lie, is not here.
#pragma once

#include "model/model_spec.h"
#include "schedule/schedule.h"
#include "strategy/role.h"

namespace convene::strategy {

// A kMoveExperts for each layer of the decoder of which something moves, on the send lanes of all
// ranks: each gets those of its experts (or slices of them) of `to` that it has not in `from`, from
// the one rank that has them there. An encoder works in prefill alone, so its experts stay.
// `bytes`: of an element of weights. Both have as many ranks, whose attention stays.
schedule::Schedule BuildTransition(const model::ModelSpec& spec, const Roles& from, const Roles& to,
                                   double bytes);

}  // namespace convene::strategy
