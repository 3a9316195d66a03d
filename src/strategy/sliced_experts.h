// Sliced experts: every rank holds a slice of every expert (first matrices by columns, last by
// rows), so that each computes the same whatever the router chooses. Every token is gathered once,
// with its experts and weights, and the weighted partial sums are scattered back ("Expert slicing",
// systems: sliced experts). The exchanges are an all-gather and a reduce-scatter over all ranks.
#pragma once

#include "strategy/step_builder.h"
#include "strategy/work.h"

namespace convene::strategy {

void AddSlicedExperts(StepBuilder& step, const LayerWork& work, int layer);

}  // namespace convene::strategy
