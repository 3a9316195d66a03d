#include "strategy/paged_experts.h"

#include <algorithm>

#include "base/check.h"
#include "strategy/expert_pipeline.h"

namespace convene::strategy {

using schedule::LaneKind;
using enum schedule::TaskKind;

namespace {

// What nobody waits for counts as work of whoever would read it otherwise.
schedule::Work NoWork(int) { return {}; }

}  // namespace

PagedExperts::PagedExperts(StepBuilder& step)
    : step_(step), chunks_(step.options().paging->chunks), depth_(step.options().paging->depth) {
  CHECK(step.roles().are_whole(), "experts on a disk of ranks without attention");
  CHECK(step.options().pipeline == PipelineOf(step.options()),
        "{} chunks are exchanged, and {} are read", step.options().pipeline.chunks, chunks_);
  CHECK(chunks_ >= 1 && depth_ >= 1, "{} chunks, {} ahead", chunks_, depth_);
  for (int layer = 0; layer < std::ssize(step.layers()); ++layer) {
    if (step.layers()[layer].moe) layers_.push_back(layer);
  }
  for (int i = 0; reads_ahead() && i < depth_; ++i) AddRead({});
}

void PagedExperts::AddRead(const std::vector<RankTasks>& after) {
  const auto number = static_cast<int>(reads_.size());
  if (number >= std::ssize(layers_) * chunks_) return;
  const int layer = layers_[number / chunks_];
  const int chunk = number % chunks_;
  const LayerWork work(step_.spec(), step_.layers()[layer], layer, step_.options());
  std::vector<RankTasks> before = after;
  if (number >= depth_) before.push_back(computed_[number - depth_]);
  reads_.push_back(step_.OnLane(
      reads_ahead() ? kReadPages : kReadChosen, LaneKind::kLoad, {layer, chunk},
      [&](int rank) { return reads_ahead() ? work.ReadPages(rank) : work.ReadChosen(rank, chunk); },
      before));
}

void PagedExperts::AddPrediction(int layer, const RankTasks& routed) {
  if (reads_ahead() || !step_.options().paging->predicts || layer == layers_.back()) return;
  step_.OnLane(kReadPredicted, LaneKind::kLoad, {layer}, NoWork, {routed});
}

// Of one rank: nobody waits for it, and it ends when the step does. Several ranks read ahead
// between steps alone (Executor::Prefetch), since those without the head do not know when the step
// ends.
void PagedExperts::AddNext(int layer) {
  if (!reads_ahead() || step_.is_encoder() || layer != layers_.back()) return;
  step_.OnLane(kReadNext, LaneKind::kLoad, {layer}, NoWork, {computed_.back()});
}

void PagedExperts::AddLayer(const LayerWork& work, int layer) {
  if (step_.num_ranks() > 1) return AddExchangedLayer(work, layer);
  AddOwnLayer(work, layer);
}

void PagedExperts::AddExchangedLayer(const LayerWork& work, int layer) {
  const auto first = computed_.size();
  const AroundExperts around{
      .before =
          [&](int chunk, const RankTasks& dispatch) {
            const size_t number = first + static_cast<size_t>(chunk);
            // Which experts are wanted is known once the rows are here.
            if (!reads_ahead()) AddRead({dispatch});
            return reads_[number];
          },
      .after =
          [&](int chunk, const RankTasks& dispatch, const RankTasks& experts) {
            computed_.push_back(experts);
            if (reads_ahead()) AddRead({});
            if (chunk + 1 == chunks_) AddPrediction(layer, dispatch);
          }};
  AddExpertPipeline(step_, work, layer, around);
}

void PagedExperts::AddOwnLayer(const LayerWork& work, int layer) {
  const RankTasks routed =
      step_.Compute(kRoute, {layer}, [&](int rank) { return work.Route(rank); });
  const auto first = computed_.size();
  const size_t end = first + static_cast<size_t>(chunks_);
  if (!reads_ahead()) {
    while (reads_.size() < std::min(end, first + static_cast<size_t>(depth_))) AddRead({routed});
  }
  if (step_.layers()[layer].moe->shared_intermediate_size > 0) {
    step_.Compute(kShared, {layer}, [&](int rank) { return work.Shared(rank); });
  }
  for (int chunk = 0; chunk < chunks_; ++chunk) {
    computed_.push_back(step_.Compute(kExperts, {layer, chunk},
                                      [&](int rank) { return work.Experts(rank, chunk); },
                                      {reads_[first + static_cast<size_t>(chunk)]}));
    if (reads_ahead()) {
      AddRead({});
    } else if (reads_.size() < end) {
      AddRead({routed});
    }
  }
  AddPrediction(layer, routed);
  AddNext(layer);
  step_.Compute(kFinish, {layer}, [&](int rank) { return work.Finish(rank); });
}

}  // namespace convene::strategy
