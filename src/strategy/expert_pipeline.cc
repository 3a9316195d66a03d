#include "strategy/expert_pipeline.h"

#include <vector>

namespace convene::strategy {

void AddExpertPipeline(StepBuilder& step, const LayerWork& work, int layer,
                       const AroundExperts& around) {
  using enum schedule::TaskKind;
  using schedule::LaneKind;
  const Pipeline& pipeline = step.options().pipeline;
  const bool by_tokens = pipeline.cut == ChunkCut::kTokens;
  const bool has_shared = step.layers()[layer].moe->shared_intermediate_size > 0;
  const auto counts = [&](const RankTasks& after) {
    step.Collective(kCounts, LaneKind::kSend, {layer}, [&](int rank) { return work.Counts(rank); },
                    {after});
  };
  std::vector<RankTasks> dispatch;
  const auto add_dispatch = [&](const RankTasks& after) {
    const auto chunk = static_cast<int>(dispatch.size());
    dispatch.push_back(step.Collective(kDispatch, LaneKind::kSend, {layer, chunk},
                                       [&](int rank) { return work.Dispatch(rank, chunk); },
                                       {after}));
  };
  const auto experts = [&](int chunk, const std::vector<RankTasks>& after) {
    return step.Compute(
        kExperts, {layer, chunk}, [&](int rank) { return work.Experts(rank, chunk); }, after);
  };

  RankTasks before = step.Compute(kRoute, {layer}, [&](int rank) { return work.Route(rank); });
  if (pipeline.overlap) {
    counts(before);
    for (int chunk = 0; chunk < pipeline.chunks; ++chunk) add_dispatch(before);
  }
  if (has_shared) {
    before = step.Compute(kShared, {layer}, [&](int rank) { return work.Shared(rank); });
  }
  if (by_tokens) before = experts(OwnChunk(pipeline, 0), {});
  if (!pipeline.overlap) counts(before);
  std::vector<RankTasks> combine;
  for (int chunk = 0; chunk < pipeline.chunks; ++chunk) {
    if (!pipeline.overlap) add_dispatch(chunk == 0 ? before : combine.back());
    std::vector<RankTasks> waits = {dispatch[chunk]};
    if (around.before) waits.push_back(around.before(chunk, dispatch[chunk]));
    const RankTasks computed = experts(chunk, waits);
    if (around.after) around.after(chunk, dispatch[chunk], computed);
    const RankTasks reduce =
        step.Compute(kReduce, {layer, chunk}, [&](int rank) { return work.Reduce(rank, chunk); });
    combine.push_back(step.Collective(kCombine, LaneKind::kReceive, {layer, chunk},
                                      [&](int rank) { return work.Combine(rank, chunk); },
                                      {reduce}));
  }
  if (by_tokens) {
    experts(OwnChunk(pipeline, 1),
            pipeline.overlap ? std::vector<RankTasks>{} : std::vector<RankTasks>{combine.back()});
  }
  step.Compute(
      kFinish, {layer}, [&](int rank) { return work.Finish(rank); }, combine);
}

}  // namespace convene::strategy
