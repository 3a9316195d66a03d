// The feed-forward half of a layer, part by part as schedules have them: dense; or router, shared
// expert, experts chunk by chunk, the sums that go back to other ranks, and the sum of all.
#pragma once

#include <optional>
#include <span>
#include <vector>

#include "comm/wire_format.h"
#include "kernels/route.h"
#include "runtime/expert_capacity.h"
#include "runtime/forward_context.h"
#include "runtime/frame.h"
#include "runtime/layer.h"

namespace convene::runtime {

class FeedForward {
 public:
  struct Options {
    strategy::Roles roles = {};
    strategy::Pipeline pipeline = {};
    int rank = 0;
    comm::WireFormat wire = comm::WireFormat::kBf16;
    Experiment experiment = {};
  };
  FeedForward(ForwardContext& context, const Options& options);

  // Of a frame's rows on their way to experts and back.
  static ExpertRows::Options RowsOptions(const Options& options, const model::ModelSpec& spec,
                                         kernels::ActivationFormat activations, int most_rows);

  // All of them work on the frame's own rows. Those that return a status lease what they read.
  Status Dense(const Layer& layer, Frame& frame);
  // Where there is a limit to what an expert takes, it needs all rows of a step.
  Status Route(const Layer& layer, Frame& frame, const CapacityStep& limit);
  Status Shared(const Layer& layer, Frame& frame);
  Status Experts(const Layer& layer, Frame& frame, int chunk);
  void Reduce(Frame& frame, int chunk);
  // Adds what the experts gave to the residual stream.
  void Finish(const Layer& layer, Frame& frame);

  // Tokens that chose each expert, per layer of the decoder, since the beginning.
  const std::vector<std::vector<int64_t>>& expert_counts() const { return expert_counts_; }

 private:
  void RunDense(const model::ActivationSpec& activation, const weights::FfnWeights& ffn,
                Frame& frame, kernels::Epilogue epilogue, float scale, const RowBuffer& out);
  void PackOutgoing(Frame& frame);
  void GatherRows(const ChunkSlots& slots, Frame& frame);
  void UnpackRow(const std::byte* from, std::byte* to, int thread_idx);

  ForwardContext& context_;
  Options options_;
  // What is dispatched where it is not the activations as they are.
  std::optional<comm::WireFormat> dispatch_;
  comm::WireFormat return_ = comm::WireFormat::kF32;
  int64_t activation_bytes_ = 0;            // of a row that is dispatched as it is
  std::vector<int> active_experts_;         // of the task in work: those that have rows
  std::vector<kernels::GemmGroup> groups_;  // of its product in work, otherwise empty
  std::vector<std::vector<int64_t>> expert_counts_;
};

}  // namespace convene::runtime
