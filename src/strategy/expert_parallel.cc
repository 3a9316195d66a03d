#include "strategy/expert_parallel.h"

namespace convene::strategy {

void AddExpertParallel(StepBuilder& step, const LayerWork& work, int layer) {
  using enum schedule::TaskKind;
  using schedule::LaneKind;
  const bool overlap = step.options().pipeline.overlap;
  const bool has_shared = step.layers()[layer].moe->shared_intermediate_size > 0;
  const auto shared = [&](const std::vector<RankTasks>& after) {
    return step.Compute(
        kShared, {layer}, [&](int rank) { return work.Shared(rank); }, after);
  };
  const RankTasks route = step.Compute(kRoute, {layer}, [&](int rank) { return work.Route(rank); });
  step.Collective(kCounts, LaneKind::kSend, {layer}, [&](int rank) { return work.Counts(rank); },
                  {route});
  const RankTasks dispatch =
      step.Collective(kDispatch, LaneKind::kSend, {layer, 0},
                      [&](int rank) { return work.Dispatch(rank, 0); }, {route});
  if (has_shared && overlap) shared({});
  step.Compute(kExperts, {layer, 0}, [&](int rank) { return work.Experts(rank, 0); }, {dispatch});
  const RankTasks reduce =
      step.Compute(kReduce, {layer, 0}, [&](int rank) { return work.Reduce(rank, 0); });
  const RankTasks combine =
      step.Collective(kCombine, LaneKind::kReceive, {layer, 0},
                      [&](int rank) { return work.Combine(rank, 0); }, {reduce});
  if (has_shared && !overlap) shared({combine});
  step.Compute(kFinish, {layer}, [&](int rank) { return work.Finish(rank); }, {combine});
}

}  // namespace convene::strategy
