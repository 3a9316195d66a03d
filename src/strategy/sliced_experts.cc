#include "strategy/sliced_experts.h"

namespace convene::strategy {

void AddSlicedExperts(StepBuilder& step, const LayerWork& work, int layer) {
  using enum schedule::TaskKind;
  using schedule::LaneKind;
  // Each rank's own tokens are there from the beginning, but a second pass over the weights would
  // cost more than it hides.
  const RankTasks route = step.Compute(kRoute, {layer}, [&](int rank) { return work.Route(rank); });
  step.Collective(kCounts, LaneKind::kSend, {layer}, [&](int rank) { return work.Counts(rank); },
                  {route});
  const RankTasks gather =
      step.Collective(kDispatch, LaneKind::kSend, {layer, 0},
                      [&](int rank) { return work.Dispatch(rank, 0); }, {route});
  const bool has_shared = step.layers()[layer].moe->shared_intermediate_size > 0;
  const bool divides_shared = step.roles().divides_shared();
  const auto shared = [&](const std::vector<RankTasks>& after) {
    if (has_shared) {
      step.Compute(
          kShared, {layer}, [&](int rank) { return work.Shared(rank); }, after);
    }
  };
  const bool waits = !step.options().pipeline.overlap;
  if (!divides_shared) shared(waits ? std::vector<RankTasks>{gather} : std::vector<RankTasks>{});
  step.Compute(kExperts, {layer, 0}, [&](int rank) { return work.Experts(rank, 0); }, {gather});
  // A slice of it is one more expert that all rows visit.
  if (divides_shared) shared({});
  const RankTasks reduce =
      step.Compute(kReduce, {layer, 0}, [&](int rank) { return work.Reduce(rank, 0); });
  const RankTasks scatter =
      step.Collective(kCombine, LaneKind::kReceive, {layer, 0},
                      [&](int rank) { return work.Combine(rank, 0); }, {reduce});
  step.Compute(kFinish, {layer}, [&](int rank) { return work.Finish(rank); }, {scatter});
}

}  // namespace convene::strategy
