#include "strategy/single.h"

namespace convene::strategy {

RankTasks AddSingle(StepBuilder& step, const LayerWork& work, int layer) {
  using enum schedule::TaskKind;
  step.Compute(kRoute, {layer}, [&](int rank) { return work.Route(rank); });
  if (step.layers()[layer].moe->shared_intermediate_size > 0) {
    step.Compute(kShared, {layer}, [&](int rank) { return work.Shared(rank); });
  }
  step.Compute(kExperts, {layer, 0}, [&](int rank) { return work.Experts(rank, 0); });
  return step.Compute(kFinish, {layer}, [&](int rank) { return work.Finish(rank); });
}

}  // namespace convene::strategy
