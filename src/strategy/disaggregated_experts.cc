#include "strategy/disaggregated_experts.h"

#include <algorithm>
#include <vector>

#include "base/check.h"

namespace convene::strategy {

using schedule::LaneKind;
using enum schedule::TaskKind;

RankTasks DisaggregatedStage::AddShared(const LayerWork& work, int layer) {
  return step_.Compute(kShared, {layer}, [&](int rank) { return work.Shared(rank); });
}

std::vector<RankTasks> DisaggregatedStage::AddDispatch(const LayerWork& work, int layer,
                                                       const RankTasks& ready) {
  step_.UseAllRanks();
  // A rank with experts has buffers for the rows of one layer of a micro-batch.
  step_.Collective(kCounts, LaneKind::kSend, {layer}, [&](int rank) { return work.Counts(rank); },
                   {ready, returned_});
  std::vector<RankTasks> dispatch;
  for (int chunk = 0; chunk < step_.options().pipeline.chunks; ++chunk) {
    dispatch.push_back(step_.Collective(kDispatch, LaneKind::kSend, {layer, chunk},
                                        [&](int rank) { return work.Dispatch(rank, chunk); },
                                        {ready}));
  }
  step_.UseRanks(&Role::owns_rows);
  return dispatch;
}

void DisaggregatedStage::AddLayer(const LayerWork& work, int layer) {
  const Pipeline& pipeline = step_.options().pipeline;
  const bool has_shared = step_.layers()[layer].moe->shared_intermediate_size > 0;
  const RankTasks route =
      step_.Compute(kRoute, {layer}, [&](int rank) { return work.Route(rank); });
  RankTasks ready = route;
  if (has_shared && pipeline.dispatch_after_shared) ready = AddShared(work, layer);
  const std::vector<RankTasks> dispatch = AddDispatch(work, layer, ready);
  if (has_shared && !pipeline.dispatch_after_shared) {
    if (pipeline.order == AttentionOrder::kAass) step_.Pause();
    AddShared(work, layer);
  }
  // Another layer's rows are packed where those of this one lie until they are sent.
  const auto has_experts = [](const model::LayerSpec& later) { return later.moe.has_value(); };
  std::vector<RankTasks> finished;
  if (std::any_of(step_.layers().begin() + layer + 1, step_.layers().end(), has_experts)) {
    finished.push_back(dispatch.back());
  }
  for (int chunk = 0; chunk < pipeline.chunks; ++chunk) {
    step_.UseRanks(&Role::has_experts);
    step_.Compute(kExperts, {layer, chunk}, [&](int rank) { return work.Experts(rank, chunk); },
                  {dispatch[chunk]});
    const RankTasks reduce =
        step_.Compute(kReduce, {layer, chunk}, [&](int rank) { return work.Reduce(rank, chunk); });
    step_.UseAllRanks();
    finished.push_back(step_.Collective(kCombine, LaneKind::kReceive, {layer, chunk},
                                        [&](int rank) { return work.Combine(rank, chunk); },
                                        {reduce, route}));
  }
  step_.UseRanks(&Role::has_experts);
  returned_ = step_.OfUsedRanks(finished.back());
  step_.UseRanks(&Role::owns_rows);
  step_.Pause();
  step_.Compute(
      kFinish, {layer}, [&](int rank) { return work.Finish(rank); }, finished);
}

schedule::Schedule BuildDisaggregatedExperts(const model::ModelSpec& spec,
                                             const DisaggregatedExperts& parameters) {
  const DisaggregatedExperts& p = parameters;
  CHECK(p.attention_ranks >= 1 && p.expert_ranks >= 1 && p.micro_batches >= 1 && p.chunks >= 1);
  return BuildStep(spec, {.roles = Roles::Disaggregated(p.attention_ranks, p.expert_ranks),
                          .pipeline = {.chunks = p.chunks,
                                       .micro_batches = p.micro_batches,
                                       .order = p.order,
                                       .dispatch_after_shared = p.dispatch_after_shared},
                          .bytes = p.bytes,
                          .prunes_last_layer = false,
                          .only_rank = p.only_rank});
}

}  // namespace convene::strategy
