#include "bench/slowed_device.h"

#include <time.h>

#include <algorithm>
#include <chrono>
#include <functional>
#include <thread>
#include <type_traits>
#include <utility>

#include "base/check.h"

namespace convene::bench {
namespace {

using device::Event;
using device::Frame;
using device::FrameMemory;
using device::FrameShape;
using device::KvCache;
using device::Layer;
using device::Stream;

double ProcessorSeconds() {
  timespec now{};
  CHECK(clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now) == 0);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

class SlowedStream : public Stream {
 public:
  SlowedStream(std::unique_ptr<Stream> stream, double factor)
      : stream_(std::move(stream)), factor_(factor) {}

  void Record(Event& event) override { stream_->Record(event); }
  void WatchExchanges(std::function<bool()> exchanging) override {
    stream_->WatchExchanges(std::move(exchanging));
  }
  Status status() const override { return stream_->status(); }
  device::StepStatistics& statistics() override { return stream_->statistics(); }

  void Begin(Frame& frame) override { stream_->Begin(frame); }
  Status Embed(bool encoder, Frame& frame) override {
    return Slowed([&] { return stream_->Embed(encoder, frame); });
  }
  void Normalize(const Layer& layer, bool cross, Frame& frame) override {
    Slowed([&] { stream_->Normalize(layer, cross, frame); });
  }
  void NormalizeDense(const Layer& layer, Frame& frame) override {
    Slowed([&] { stream_->NormalizeDense(layer, frame); });
  }
  void NormalizeFinal(bool encoder, Frame& frame) override {
    Slowed([&] { stream_->NormalizeFinal(encoder, frame); });
  }
  void KeepWanted(Frame& frame) override { stream_->KeepWanted(frame); }
  Status Project(const Layer& layer, Frame& frame) override {
    return Slowed([&] { return stream_->Project(layer, frame); });
  }
  Status Attend(const Layer& layer, const AttentionTask& task, Frame& frame) override {
    return Slowed([&] { return stream_->Attend(layer, task, frame); });
  }
  Status BeginAttention(const Layer& layer, Frame& frame) override {
    return Slowed([&] { return stream_->BeginAttention(layer, frame); });
  }
  Status AttendSequences(const Layer& layer, SequenceRange sequences, bool only_wanted,
                         Frame& frame) override {
    return Slowed([&] { return stream_->AttendSequences(layer, sequences, only_wanted, frame); });
  }
  Status EndAttention(const Layer& layer, bool only_wanted, Frame& frame) override {
    return Slowed([&] { return stream_->EndAttention(layer, only_wanted, frame); });
  }
  int64_t AttentionRowBytes(device::AttentionRows kind, const Layer& layer) const override {
    return stream_->AttentionRowBytes(kind, layer);
  }
  void PackAttention(device::AttentionRows kind, const Layer& layer, const Frame& frame,
                     std::byte* to) override {
    Slowed([&] { stream_->PackAttention(kind, layer, frame, to); });
  }
  void UnpackAttention(device::AttentionRows kind, const Layer& layer, const std::byte* from,
                       Frame& frame) override {
    Slowed([&] { stream_->UnpackAttention(kind, layer, from, frame); });
  }
  void AddPartials(Frame& frame) override {
    Slowed([&] { stream_->AddPartials(frame); });
  }
  Status StoreCross(const Layer& layer, Frame& frame) override {
    return Slowed([&] { return stream_->StoreCross(layer, frame); });
  }

  Status Dense(const Layer& layer, Frame& frame) override {
    return Slowed([&] { return stream_->Dense(layer, frame); });
  }
  Status Route(const Layer& layer, Frame& frame) override {
    return Slowed([&] { return stream_->Route(layer, frame); });
  }
  void FetchRouting(Frame& frame) override { stream_->FetchRouting(frame); }
  bool KeepsRouting() const override { return stream_->KeepsRouting(); }
  Status RouteHere(const Layer& layer, Frame& frame) override {
    return Slowed([&] { return stream_->RouteHere(layer, frame); });
  }
  Status Predict(const Layer& next, Frame& frame) override {
    return Slowed([&] { return stream_->Predict(next, frame); });
  }
  void PackDispatch(Frame& frame) override {
    Slowed([&] { stream_->PackDispatch(frame); });
  }
  Status Shared(const Layer& layer, Frame& frame) override {
    return Slowed([&] { return stream_->Shared(layer, frame); });
  }
  Status Experts(const Layer& layer, Frame& frame) override {
    return Slowed([&] { return stream_->Experts(layer, frame); });
  }
  void Reduce(std::span<const device::ExpertRows::Returning> sums, Frame& frame) override {
    Slowed([&] { stream_->Reduce(sums, frame); });
  }
  void Finish(const Layer& layer, Frame& frame) override {
    Slowed([&] { stream_->Finish(layer, frame); });
  }

  Status Head(std::span<const device::HeadRow> rows, bool largest_suffices) override {
    return Slowed([&] { return stream_->Head(rows, largest_suffices); });
  }
  device::FetchedLogits FetchLogits() override { return stream_->FetchLogits(); }
  bool FetchAllFinite(const Frame& frame) override { return stream_->FetchAllFinite(frame); }

 private:
  template <typename F>
  std::invoke_result_t<F> Slowed(F&& operation) {
    const Sleeper sleeper(*this);
    return operation();
  }

  // Sleeps when the operator has been computed. A sleep ends late by some 60 µs, which the next
  // ones are shorter by.
  class Sleeper {
   public:
    explicit Sleeper(SlowedStream& stream) : stream_(stream), began_(ProcessorSeconds()) {}
    ~Sleeper() {
      stream_.owed_seconds_ += (stream_.factor_ - 1) * (ProcessorSeconds() - began_);
      if (stream_.owed_seconds_ <= 0) return;
      const auto before = std::chrono::steady_clock::now();
      std::this_thread::sleep_for(std::chrono::duration<double>(stream_.owed_seconds_));
      const std::chrono::duration<double> slept = std::chrono::steady_clock::now() - before;
      // What a sleep was late beyond that is the machine's affair.
      stream_.owed_seconds_ = std::max(stream_.owed_seconds_ - slept.count(), -1e-3);
    }
    Sleeper(const Sleeper&) = delete;
    Sleeper& operator=(const Sleeper&) = delete;

   private:
    SlowedStream& stream_;
    const double began_;
  };

  const std::unique_ptr<Stream> stream_;
  const double factor_;
  double owed_seconds_ = 0;
};

class SlowedDevice : public device::Device {
 public:
  SlowedDevice(std::unique_ptr<Device> device, double factor)
      : device_(std::move(device)), factor_(factor) {}

  const char* name() const override { return device_->name(); }
  memory::TierKind memory() const override { return device_->memory(); }
  const std::vector<int>& lane_cpus() const override { return device_->lane_cpus(); }
  hardware::ThreadPool* host_threads() const override { return device_->host_threads(); }
  Status Supports(const model::ModelSpec& spec,
                  kernels::ActivationFormat activations) const override {
    return device_->Supports(spec, activations);
  }
  Result<std::unique_ptr<KvCache>> CreateKvCache(const model::ModelSpec& spec,
                                                 kernels::KvFormat format, int num_blocks,
                                                 memory::Ledger& ledger) override {
    return device_->CreateKvCache(spec, format, num_blocks, ledger);
  }
  Result<std::unique_ptr<FrameMemory>> CreateFrameMemory(const model::ModelSpec& spec,
                                                         kernels::ActivationFormat activations,
                                                         const FrameShape& shape,
                                                         memory::Ledger& ledger) override {
    return device_->CreateFrameMemory(spec, activations, shape, ledger);
  }
  Result<std::unique_ptr<Stream>> CreateStream(weights::WeightStore& weights, KvCache& cache,
                                               const device::StreamOptions& options,
                                               memory::Ledger& ledger) override {
    Result<std::unique_ptr<Stream>> stream = device_->CreateStream(weights, cache, options, ledger);
    if (!stream) return stream.error();
    return std::unique_ptr<Stream>(std::make_unique<SlowedStream>(*std::move(stream), factor_));
  }
  std::unique_ptr<Event> CreateEvent() override { return device_->CreateEvent(); }
  Result<std::unique_ptr<memory::CopyLane>> CreateCopyLane() override {
    return device_->CreateCopyLane();
  }

 private:
  const std::unique_ptr<Device> device_;
  const double factor_;
};

}  // namespace

std::unique_ptr<device::Device> MakeSlowedDevice(std::unique_ptr<device::Device> device,
                                                 double factor) {
  CHECK(factor >= 1, "a factor of {}", factor);
  if (factor == 1) return device;
  return std::make_unique<SlowedDevice>(std::move(device), factor);
}

}  // namespace convene::bench
