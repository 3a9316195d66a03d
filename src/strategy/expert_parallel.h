// Expert parallelism: each rank has whole experts (or slices of some), and each token goes once to
// every rank that has one of its own and comes back as one sum. Nothing is dropped or padded.
#pragma once

#include "strategy/step_builder.h"
#include "strategy/work.h"

namespace convene::strategy {

// One dispatch, the experts of all ranks, one combine; the shared expert runs meanwhile, unless
// Pipeline::overlap is false.
void AddExpertParallel(StepBuilder& step, const LayerWork& work, int layer);

}  // namespace convene::strategy
