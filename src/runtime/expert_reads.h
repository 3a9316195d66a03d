// Reads experts that lie on a disk (weights/paged_weights.h) when the step's tasks of the load lane
// say so (strategy/paged_experts.h), and keeps what routers will probably choose. Where all weights
// are in memory it has nothing to do.
#pragma once

#include <optional>
#include <vector>

#include "device/frame.h"
#include "device/layer.h"
#include "schedule/schedule.h"
#include "strategy/step.h"
#include "weights/paged_weights.h"

namespace convene::runtime {

class ExpertReads {
 public:
  // Null: all weights are in memory.
  explicit ExpertReads(weights::PagedWeights* paged) : paged_(paged) {}

  // Before a step, of a stack of so many layers at most.
  void Begin(const std::optional<strategy::Paging>& paging, size_t num_layers);

  // The layer of the stack whose router is to be asked before that of `layer`; null: none.
  const device::Layer* ToPredict(const std::vector<device::Layer>& stack, int layer) const;
  // `layer` was routed, and so the routing fetched; `predicted`: what ToPredict gave.
  void Chose(const device::Layer& layer, const device::Layer* predicted,
             const device::Frame& frame);

  // A task of the load lane. `frame` has the routing of its layer, where the task waits for that;
  // null: the step has failed. What cannot be read is the error of who computes with it.
  void Read(const schedule::Task& task, const std::vector<device::Layer>& stack,
            const device::Frame* frame);
  // The last logits of the step are sampled: the next one begins at once.
  void EndStep();
  // What was read for the chunk of the task's layer, which is computed or given up.
  void Release(const schedule::Task& task);

 private:
  weights::PagedWeights* paged_;
  bool predicts_ = false;
  // By layer, in increasing order; there once the layer before was routed.
  std::vector<std::vector<int>> predicted_;
};

}  // namespace convene::runtime
