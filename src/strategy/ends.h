// The two ends of a step, which all strategies share: from tokens to rows, and from the rows whose
// logits are wanted to these, on rank 0.
#pragma once

#include <vector>

#include "strategy/step_builder.h"

namespace convene::strategy {

// Of the ranks in use, as is the next.
void AddEmbedding(StepBuilder& step);
RankTasks AddFinalNorm(StepBuilder& step);

// To rank 0, from those of `owners` that have rows; and how each rank has fared, to all.
RankTasks GatherWanted(StepBuilder& step, RankRange owners, double row_bytes,
                       const RankTasks& after);

// On rank 0, of the rows that `owners` ranks from 0 on have in all micro-batches.
void AddHead(StepBuilder& step, int owners, const std::vector<RankTasks>& after);

}  // namespace convene::strategy
