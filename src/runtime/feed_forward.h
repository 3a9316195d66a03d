// The feed-forward half of a layer, part by part as schedules have them: dense; or router, shared
// expert, experts chunk by chunk, the sums that go back to other ranks, and the sum of all.
#pragma once

#include <optional>
#include <span>
#include <vector>

#include "comm/wire_format.h"
#include "kernels/route.h"
#include "runtime/expert_capacity.h"
#include "runtime/expert_rows.h"
#include "runtime/forward_context.h"
#include "runtime/layer.h"

namespace convene::runtime {

class FeedForward {
 public:
  struct Options {
    strategy::Layout layout = {};
    strategy::Pipeline pipeline = {};
    int rank = 0;
    comm::WireFormat wire = comm::WireFormat::kBf16;
    RouterOverride router = {};
    double capacity_factor = 0;  // as ExpertRows::Options, as is the next one
    int most_rows = 0;
  };
  // Takes MemoryBytes of `memory`.
  FeedForward(ForwardContext& context, const Options& options, comm::Group* group,
              ExchangeMemory& memory);

  // Of rows on their way between ranks.
  static int64_t MemoryBytes(const model::ModelSpec& spec, kernels::ActivationFormat activations,
                             const Options& options, int num_threads);

  // All of them work on own rows, rows [own.first, own.first + own.count) of the buffers.
  void Dense(const Layer& layer, OwnRows own);
  // Where there is a limit to what an expert takes, it needs all rows of a step.
  void Route(const Layer& layer, OwnRows own, const CapacityStep& limit);
  void Shared(const Layer& layer, OwnRows own);
  void Experts(const Layer& layer, int chunk);
  void Reduce(int chunk);
  // Adds what the experts gave to the residual stream.
  void Finish(const Layer& layer, OwnRows own);

  ExpertRows& rows() { return rows_; }
  // Tokens that chose each expert, per layer of the decoder, since the beginning.
  const std::vector<std::vector<int64_t>>& expert_counts() const { return expert_counts_; }

 private:
  void RunDense(const model::ActivationSpec& activation, const weights::FfnWeights& ffn,
                OwnRows own, kernels::Epilogue epilogue, float scale, const RowBuffer& out);
  void PackOutgoing(OwnRows own);
  void GatherRows(const ChunkSlots& slots, OwnRows own);
  void UnpackRow(const std::byte* from, std::byte* to, int thread_idx);

  ForwardContext& context_;
  Options options_;
  // What is dispatched where it is not the activations as they are.
  std::optional<comm::WireFormat> dispatch_;
  comm::WireFormat return_ = comm::WireFormat::kF32;
  int64_t activation_bytes_ = 0;  // of a row that is dispatched as it is
  ExpertRows rows_;
  OwnRows own_;                        // of the layer in work
  std::vector<int32_t> experts_;       // (rows, top_k)
  std::vector<float> expert_weights_;  // (rows, top_k)
  std::vector<kernels::GemmGroup> groups_;
  std::span<float> row_scratch_;  // (threads, ranks, hidden)
  std::vector<std::vector<int64_t>> expert_counts_;
};

}  // namespace convene::runtime
