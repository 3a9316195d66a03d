#include "strategy/offload_items.h"

#include "strategy/ends.h"

namespace convene::strategy {

using schedule::LaneKind;
using schedule::TaskKind;

RankTasks OffloadItems::Add(TaskKind kind, LaneKind lane, int item,
                            const std::vector<RankTasks>& after, schedule::Work work, int chunk) {
  step_.UseMicroBatch(item % micro_batches_);
  return step_.OnLane(
      kind, lane, {.layer = LayerOf(item), .chunk = chunk}, [&](int) { return work; }, after);
}

RankTasks OffloadItems::AddCopy(TaskKind kind, LaneKind lane, int layer, int page,
                                const std::vector<RankTasks>& after, schedule::Work work) {
  step_.UseMicroBatch(-1);
  return step_.OnLane(
      kind, lane, {.layer = layer, .chunk = page}, [&](int) { return work; }, after);
}

void OffloadItems::Embed() {
  for (int i = 0; i < micro_batches_; ++i) {
    step_.UseMicroBatch(i);
    AddEmbedding(step_);
  }
}

void OffloadItems::AttendOnHost(int item) {
  if (item >= count_) return;
  const LayerWork work = WorkOf(LayerOf(item));
  const RankTasks pre =
      Add(TaskKind::kPreAttention, LaneKind::kCompute, item, {}, work.PreAttention(0));
  const RankTasks qkv = Add(TaskKind::kSendQkv, LaneKind::kStore, item, {pre}, work.SendQkv(0));
  attended_[item] = Add(TaskKind::kAttend, LaneKind::kHost, item, {qkv}, work.Attend(0));
}

RankTasks OffloadItems::SendHidden(int item) {
  return Add(TaskKind::kSendHidden, LaneKind::kLoad, item, {attended_[item]},
             WorkOf(LayerOf(item)).SendHidden(0));
}

void OffloadItems::Finish(int item, const std::vector<RankTasks>& after,
                          const std::vector<RankTasks>& weights) {
  Add(TaskKind::kPostAttention, LaneKind::kCompute, item, after,
      WorkOf(LayerOf(item)).PostAttention(0));
  FeedForward(item, weights);
}

void OffloadItems::FeedForward(int item, const std::vector<RankTasks>& weights) {
  const LayerWork work = WorkOf(LayerOf(item));
  const auto compute = [&](TaskKind kind, schedule::Work of, const std::vector<RankTasks>& after,
                           int chunk = -1) {
    through_[item] = Add(kind, LaneKind::kCompute, item, after, std::move(of), chunk);
  };
  const model::LayerSpec& spec = step_.layers()[LayerOf(item)];
  if (!spec.moe) return compute(TaskKind::kDense, work.Dense(0), weights);
  compute(TaskKind::kRoute, work.Route(0), {});
  if (spec.moe->shared_intermediate_size > 0) compute(TaskKind::kShared, work.Shared(0), {});
  compute(TaskKind::kExperts, work.Experts(0, 0), weights, 0);
  compute(TaskKind::kFinish, work.Finish(0), {});
}

void OffloadItems::Head() {
  for (int i = 0; i < micro_batches_; ++i) {
    step_.UseMicroBatch(i);
    AddFinalNorm(step_);
  }
  step_.UseMicroBatch(-1);
  AddHead(step_, {});
}

}  // namespace convene::strategy
