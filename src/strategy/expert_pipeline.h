// The expert pipeline (EPS-MoE, section 3): a rank's expert work is cut into chunks, so that chunk
// c computes while c + 1 is dispatched and the sums of c - 1 return.
//
// Cut by tokens: chunks of what comes from other ranks, all alike; a rank's own tokens, which need
// no exchange, are computed first (while the first chunk comes) and last (while the last sums
// return): chunks Own(0) and Own(1). Weights are read for each chunk. Cut by experts: weights are
// read once, a token comes with the first chunk that needs it and returns with the last one.
#pragma once

#include <functional>

#include "strategy/step_builder.h"
#include "strategy/work.h"

namespace convene::strategy {

// The number of the experts task on own tokens, first (0) or last (1).
inline int OwnChunk(const Pipeline& pipeline, int part) { return pipeline.chunks + part; }

// What comes before and after the experts of each chunk besides; both empty: nothing.
struct AroundExperts {
  // Gets the dispatch of the chunk, and returns what its experts wait for, too.
  std::function<RankTasks(int chunk, const RankTasks& dispatch)> before = {};
  std::function<void(int chunk, const RankTasks& dispatch, const RankTasks& experts)> after = {};
};

void AddExpertPipeline(StepBuilder& step, const LayerWork& work, int layer,
                       const AroundExperts& around = {});

}  // namespace convene::strategy
