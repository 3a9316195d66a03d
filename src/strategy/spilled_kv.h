// Attention whose keys and values lie on a disk but for a part of them (runtime/spilled_kv.h): the
// sequences of a step go through it in parts, and tasks of the load lane read the blocks of a part
// before its scores and write what is new of them back behind them. Projections before and behind
// are of the whole step at once, so that their weights are read once. As in MoE-Lightning's
// pipeline (Cao et al. 2024, section 4.1) these reads share a lane with those of experts
// (paged_experts.h), each listed where the memory for it becomes free: so what is
// needed first is mostly read first, and nothing waits for memory while something else has some.
#pragma once

#include <vector>

#include "strategy/step_builder.h"
#include "strategy/work.h"

namespace convene::strategy {

class SpilledAttention {
 public:
  // Adds the first reads, behind `embedded`, the step's first tasks: only then it is known which
  // sequences the step has, while experts may be read between steps. Keeps a reference.
  // Precondition: StepOptions::spilled_kv, one rank.
  SpilledAttention(StepBuilder& step, const RankTasks& embedded);

  // The attention of a layer, in the order of layers.
  void AddLayer(const LayerWork& work, int layer);

 private:
  // The next part that is to be read.
  void AddRead(const RankTasks& after);

  StepBuilder& step_;
  int parts_;
  int depth_;
  std::vector<RankTasks> reads_;  // by part over the whole step
};

}  // namespace convene::strategy
