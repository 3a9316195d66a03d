// Which sequences of a step share a micro-batch: request batching (MoE-Lightning, Cao et al.,
// ASPLOS 2025, Algorithm 2). The runtime cuts a step into micro-batches by rows, in the order of
// its sequences (runtime/cut_step.h); here is that order.
#pragma once

#include <vector>

#include "engine/scheduler.h"

namespace convene::engine {

// Reorders the sequences of each group of ranks, where all of a step have one token: the one with
// the most tokens before it first, each goes to the micro-batch with the fewest so far that is not
// full. So no micro-batch has all the long ones, whose attention the others would wait for. Steps
// with prompts stay as they are, since their sequences are cut where micro-batches end. What a
// sequence is given does not depend on the order.
void BalanceMicroBatches(int num_micro_batches, std::vector<ScheduledTokens>* step);

}  // namespace convene::engine
