// The two ends of a step, which all strategies share: from tokens to rows, and from the rows whose
// logits are wanted to these, on rank 0.
#pragma once

#include <vector>

#include "strategy/step_builder.h"

namespace convene::strategy {

// Of the ranks in use, as is the next.
RankTasks AddEmbedding(StepBuilder& step);
RankTasks AddFinalNorm(StepBuilder& step);

// To the ranks with the head, from those that own rows; and how each rank has fared, to all.
RankTasks GatherWanted(StepBuilder& step, double row_bytes, const RankTasks& after);

// Of the rows that all ranks own in all micro-batches.
void AddHead(StepBuilder& step, const std::vector<RankTasks>& after);

}  // namespace convene::strategy
