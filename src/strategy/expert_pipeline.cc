#include "strategy/expert_pipeline.h"

#include <vector>

namespace convene::strategy {

void AddExpertPipeline(StepBuilder& step, const LayerWork& work, int layer) {
  using enum schedule::TaskKind;
  using schedule::LaneKind;
  const Pipeline& pipeline = step.options().pipeline;
  const bool by_tokens = pipeline.cut == ChunkCut::kTokens;
  const RankTasks route = step.Compute(kRoute, {layer}, [&](int rank) { return work.Route(rank); });
  step.Collective(kCounts, LaneKind::kSend, {layer}, [&](int rank) { return work.Counts(rank); },
                  {route});
  std::vector<RankTasks> dispatch;
  for (int chunk = 0; chunk < pipeline.chunks; ++chunk) {
    dispatch.push_back(step.Collective(kDispatch, LaneKind::kSend, {layer, chunk},
                                       [&](int rank) { return work.Dispatch(rank, chunk); },
                                       {route}));
  }
  const auto experts = [&](int chunk, const std::vector<RankTasks>& after) {
    step.Compute(
        kExperts, {layer, chunk}, [&](int rank) { return work.Experts(rank, chunk); }, after);
  };

  if (step.layers()[layer].moe->shared_intermediate_size > 0) {
    step.Compute(kShared, {layer}, [&](int rank) { return work.Shared(rank); });
  }
  if (by_tokens) experts(OwnChunk(pipeline, 0), {});
  std::vector<RankTasks> combine;
  for (int chunk = 0; chunk < pipeline.chunks; ++chunk) {
    experts(chunk, {dispatch[chunk]});
    const RankTasks reduce =
        step.Compute(kReduce, {layer, chunk}, [&](int rank) { return work.Reduce(rank, chunk); });
    combine.push_back(step.Collective(kCombine, LaneKind::kReceive, {layer, chunk},
                                      [&](int rank) { return work.Combine(rank, chunk); },
                                      {reduce}));
  }
  if (by_tokens) experts(OwnChunk(pipeline, 1), {});
  step.Compute(
      kFinish, {layer}, [&](int rank) { return work.Finish(rank); }, combine);
}

}  // namespace convene::strategy
