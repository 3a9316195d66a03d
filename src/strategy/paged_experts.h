// Experts whose weights lie on a disk (weights/paged_weights.h): tasks of each rank's load lane
// bring its own ones to memory, chunk by chunk, in the order in which they are computed. Where
// several ranks exchange rows, the chunks are those of the expert pipeline (expert_pipeline.h), cut
// by experts: a chunk is read while rows of it are dispatched, and sums of the one before it
// return. What stays of MoE-Lightning's pipeline (systems 5; Cao et al. 2024, section 4.1) where
// one machine is both device and host: pages of the next layer load during this layer's
// computation, and those of the next step's first layers between steps (Executor::Prefetch).
#pragma once

#include <utility>
#include <vector>

#include "strategy/step_builder.h"
#include "strategy/work.h"

namespace convene::strategy {

class PagedExperts {
 public:
  // Adds the reads that wait for nothing, so before any layer. Keeps a reference. Precondition:
  // StepOptions::paging.
  explicit PagedExperts(StepBuilder& step);

  // All tasks of a layer behind its attention, in the order of layers.
  void AddLayer(const LayerWork& work, int layer);

 private:
  void AddOwnLayer(const LayerWork& work, int layer);
  void AddExchangedLayer(const LayerWork& work, int layer);
  // The next chunk that is to be read: once that chunk is computed whose memory it may take, and
  // what `after` says.
  void AddRead(const std::vector<RankTasks>& after);
  // Of the next step, once all of this one was computed.
  void AddNext(int layer);
  // Of the next layer with experts, once this layer's experts were read.
  void AddPrediction(int layer, const RankTasks& routed);
  bool reads_ahead() const { return !step_.options().paging->after_routing; }

  StepBuilder& step_;
  int chunks_;
  int depth_;
  std::vector<int> layers_;       // that have experts
  std::vector<RankTasks> reads_;  // by chunk over the whole step, as is the next one
  std::vector<RankTasks> computed_;
};

}  // namespace convene::strategy
