// The search's pass over the most tokens of a step. A step of prefill reads the weights once for
// all its tokens, so long prompts and many of them want large ones; what these take is working
// memory, in which experts could stay that are read from a disk. Groups of ranks with sequences of
// their own have as many tokens each, so that layouts in which all ranks work on the same tokens
// are compared with others only where each has the steps that suit it.
#pragma once

#include "planner/plan_search.h"

namespace convene::planner {

// Of the fastest plans, and the fastest of each system (plan_system.h), steps of twice as many
// tokens as are usual, four times and so on, as long as that gains. Nothing where steps are given,
// where requests arrive at a rate (who waits for a long step is not in the prices), and of
// encoder-decoders, whose inputs are whole.
void AddStepSizes(PlanSearch& search);

}  // namespace convene::planner
