// What all orders of an offloaded decode step (offload_pipeline.h) are made of: the two parts of a
// layer that a micro-batch goes through. In which order, and what is loaded when, is the orders'
// matter.
#pragma once

#include <vector>

#include "strategy/step_builder.h"
#include "strategy/work.h"

namespace convene::strategy {

// Work items are counted over the whole step: item n is micro-batch n % m of layer n / m.
class OffloadItems {
 public:
  OffloadItems(StepBuilder& step, int micro_batches)
      : step_(step),
        micro_batches_(micro_batches),
        count_(static_cast<int>(step.layers().size()) * micro_batches),
        through_(count_),
        attended_(count_) {}

  int count() const { return count_; }
  int micro_batches() const { return micro_batches_; }
  int num_layers() const { return count_ / micro_batches_; }
  int LayerOf(int item) const { return item / micro_batches_; }
  // What of the item is done last in its layer; where attention on the host ends.
  const RankTasks& through(int item) const { return through_[item]; }
  const RankTasks& attended(int item) const { return attended_[item]; }

  // Of a layer, or of the one behind the last, which is the next step's first.
  LayerWork WorkOf(int layer) const {
    return {step_.spec(), step_.layers()[layer % num_layers()], layer, step_.options()};
  }

  RankTasks Add(schedule::TaskKind kind, schedule::LaneKind lane, int item,
                const std::vector<RankTasks>& after, schedule::Work work, int chunk = -1);
  // Of a page of a layer's weights, which belongs to no micro-batch.
  RankTasks AddCopy(schedule::TaskKind kind, schedule::LaneKind lane, int layer, int page,
                    const std::vector<RankTasks>& after, schedule::Work work);

  void Embed();
  // Pre-attention, queries down, and attention on the host; nothing where there is no such item.
  void AttendOnHost(int item);
  // The hidden states up.
  RankTasks SendHidden(int item);
  // From attention on, with the layer's streamed weights: none where they were there before.
  void Finish(int item, const std::vector<RankTasks>& after, const std::vector<RankTasks>& weights);
  void Head();

 private:
  void FeedForward(int item, const std::vector<RankTasks>& weights);

  StepBuilder& step_;
  int micro_batches_;
  int count_;
  std::vector<RankTasks> through_;
  std::vector<RankTasks> attended_;
};

}  // namespace convene::strategy
