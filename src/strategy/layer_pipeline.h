// Layers divided over ranks (pipeline parallelism; Huang et al., "GPipe", 2019): each rank has some
// consecutive ones whole, and a step's micro-batches go through the ranks one behind the other. So
// each rank computes one micro-batch while the next rank has the one before.
//
// A row goes from one rank to the next once, with its whole residual stream in float32: the least
// that ranks can exchange, and what one rank would compute, to the bit. The price is that ranks
// wait for the first micro-batch and behind the last, and that weights are read for each.
#pragma once

#include "strategy/step_builder.h"

namespace convene::strategy {

// Of a residual stream's row, from rank to rank.
inline constexpr double kHiddenBytes = 4;

// On which lane of both ranks the rows of rank `stage` go to the one behind it. What comes to a
// rank and what goes out have lanes of their own: otherwise what goes out would wait until the
// micro-batches behind it have come.
inline schedule::LaneKind LaneBehind(int stage) {
  return stage % 2 == 0 ? schedule::LaneKind::kSend : schedule::LaneKind::kReceive;
}

// One micro-batch from the tokens to the output's norm on the last rank. Returns the last task of
// each rank: a rank that says how it has fared must have done all that can fail.
RankTasks AddLayerPipeline(StepBuilder& step);

}  // namespace convene::strategy
