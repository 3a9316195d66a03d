// The experts of a layer where one rank has them all: nothing is sent.
#pragma once

#include "strategy/step_builder.h"
#include "strategy/work.h"

namespace convene::strategy {

// Returns the last task of each rank.
RankTasks AddSingle(StepBuilder& step, const LayerWork& work, int layer);

}  // namespace convene::strategy
