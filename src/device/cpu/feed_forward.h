// The feed-forward half of a layer, part by part as schedules have them: dense; or router, shared
// expert, experts chunk by chunk, the sums that go back to other ranks, and the sum of all.
#pragma once

#include <span>
#include <vector>

#include "device/cpu/cpu_frame.h"
#include "device/cpu/forward_context.h"
#include "device/cpu/partial_sums.h"
#include "device/layer.h"

namespace convene::device {

class FeedForward {
 public:
  // `dense_sums`: of a rank with a part of each dense block; null: of one that has them whole.
  FeedForward(ForwardContext& context, PartialSums* dense_sums)
      : context_(context), dense_sums_(dense_sums) {}

  // As in Stream. Those that return a status lease what they read.
  Status Dense(const Layer& layer, Frame& frame);
  // The norm before all of it.
  void Normalize(const Layer& layer, Frame& frame);
  Status Route(const Layer& layer, Frame& frame);
  Status Predict(const Layer& next, Frame& frame);
  void PackDispatch(Frame& frame);
  Status Shared(const Layer& layer, Frame& frame);
  Status Experts(const Layer& layer, Frame& frame);
  void Reduce(std::span<const ExpertRows::Returning> sums, Frame& frame);
  void Finish(const Layer& layer, Frame& frame);

 private:
  // What the layer's router chooses for the own rows, as the residual stream is.
  Status ChooseExperts(const Layer& layer, Frame& frame, std::vector<int32_t>* experts,
                       std::vector<float>* expert_weights);
  // Of these rows.
  void RunDense(const model::ActivationSpec& activation, const weights::FfnWeights& ffn,
                OwnRows rows, Frame& frame, kernels::Epilogue epilogue, float scale,
                const RowBuffer& out);
  void GatherRows(const ChunkSlots& slots, int first, int count, Frame& frame);
  // A slice of the shared expert, of all rows: those of its slots.
  void SharedSlots(const model::ActivationSpec& activation, const weights::FfnWeights& ffn,
                   Frame& frame);
  void UnpackRow(const std::byte* from, std::byte* to, int thread_idx);

  ForwardContext& context_;
  PartialSums* dense_sums_;
  std::vector<int> active_experts_;         // of the task in work: those that have rows
  std::vector<kernels::GemmGroup> groups_;  // of its product in work, otherwise empty
};

}  // namespace convene::device
