// The operators of a CPU, which runs each as soon as it is enqueued: loops over rows on a thread
// pool, with kernels/ below them.
#pragma once

#include <functional>
#include <memory>
#include <utility>

#include "device/cpu/attend.h"
#include "device/cpu/attention_layer.h"
#include "device/cpu/cpu_kv_cache.h"
#include "device/cpu/cross_attention.h"
#include "device/cpu/feed_forward.h"
#include "device/cpu/forward_context.h"
#include "device/cpu/partial_sums.h"
#include "device/cpu/workspace.h"
#include "device/stream.h"

namespace convene::device {

class CpuStream final : public Stream {
 public:
  CpuStream(weights::WeightStore& weights, const kernels::KernelSet& kernels,
            hardware::ThreadPool& pool, CpuKvCache& cache, const StreamOptions& options,
            Workspace workspace);

  void Record(Event&) override {}  // everything is done already
  void WatchExchanges(std::function<bool()> exchanging) override {
    context_.exchanging = std::move(exchanging);
  }
  Status status() const override { return {}; }
  StepStatistics& statistics() override { return statistics_; }

  void Begin(Frame& frame) override;
  Status Embed(bool encoder, Frame& frame) override;
  void Normalize(const Layer& layer, bool cross, Frame& frame) override;
  void NormalizeDense(const Layer& layer, Frame& frame) override {
    feed_forward_.Normalize(layer, frame);
  }
  void NormalizeFinal(bool encoder, Frame& frame) override;
  void KeepWanted(Frame& frame) override { MoveWanted(frame.own(), frame); }
  Status Project(const Layer& layer, Frame& frame) override;
  Status Attend(const Layer& layer, const AttentionTask& task, Frame& frame) override;
  Status BeginAttention(const Layer& layer, Frame& frame) override;
  Status AttendSequences(const Layer& layer, SequenceRange sequences, bool only_wanted,
                         Frame& frame) override;
  Status EndAttention(const Layer& layer, bool only_wanted, Frame& frame) override;
  int64_t AttentionRowBytes(AttentionRows kind, const Layer& layer) const override {
    return attention_.RowBytes(kind, layer);
  }
  void PackAttention(AttentionRows kind, const Layer& layer, const Frame& frame,
                     std::byte* to) override {
    attention_.Pack(kind, layer, frame, to);
  }
  void UnpackAttention(AttentionRows kind, const Layer& layer, const std::byte* from,
                       Frame& frame) override {
    attention_.Unpack(kind, layer, from, frame);
  }
  void AddPartials(Frame& frame) override { partial_sums_.Add(frame); }
  Status StoreCross(const Layer& layer, Frame& frame) override {
    return cross_attention_.Store(layer, frame);
  }

  Status Dense(const Layer& layer, Frame& frame) override {
    return feed_forward_.Dense(layer, frame);
  }
  Status Route(const Layer& layer, Frame& frame) override {
    return feed_forward_.Route(layer, frame);
  }
  Status Predict(const Layer& next, Frame& frame) override {
    return feed_forward_.Predict(next, frame);
  }
  void FetchRouting(Frame& frame) override;
  // What is computed by whom is decided by the host, which is the device here.
  bool KeepsRouting() const override { return false; }
  Status RouteHere(const Layer& layer, Frame& frame) override { return Route(layer, frame); }
  void PackDispatch(Frame& frame) override { feed_forward_.PackDispatch(frame); }
  Status Shared(const Layer& layer, Frame& frame) override {
    return feed_forward_.Shared(layer, frame);
  }
  Status Experts(const Layer& layer, Frame& frame) override {
    return feed_forward_.Experts(layer, frame);
  }
  void Reduce(std::span<const ExpertRows::Returning> sums, Frame& frame) override {
    feed_forward_.Reduce(sums, frame);
  }
  void Finish(const Layer& layer, Frame& frame) override { feed_forward_.Finish(layer, frame); }

  Status Head(std::span<const HeadRow> rows, bool largest_suffices) override;
  FetchedLogits FetchLogits() override;
  bool FetchAllFinite(const Frame& frame) override;

 private:
  // Of the wanted rows, these to their places among them.
  void MoveWanted(OwnRows wanted, Frame& frame);

  const model::ModelSpec& whole_spec_;
  strategy::AttentionRole role_;
  Workspace workspace_;
  StepStatistics statistics_;
  ForwardContext context_;
  Attender attender_;
  AttentionLayer attention_;
  CrossAttention cross_attention_;
  PartialSums partial_sums_;
  FeedForward feed_forward_;
};

}  // namespace convene::device
