// Attention, by heads where several ranks share a group's sequences (Megatron-LM, 2019, section 3).
// The residual stream of a row lives on one of them, its owner: normed rows are gathered from the
// owners, partial outputs go back to them. So an all-reduce's two halves stand on either side of
// what each row needs alone (sequence parallelism, Korthikanti et al., 2022). Dense blocks the same
// way, where the layout divides them.
#pragma once

#include "strategy/step_builder.h"
#include "strategy/work.h"

namespace convene::strategy {

// `cross`: the decoder's attention to the encoder's output. `after`: what its first task waits for
// besides what is before it on its lane.
void AddAttention(StepBuilder& step, const LayerWork& work, int layer, bool cross,
                  const RankTasks& after = {});

// The feed-forward block of a layer without experts.
void AddDense(StepBuilder& step, const LayerWork& work, int layer);

}  // namespace convene::strategy
