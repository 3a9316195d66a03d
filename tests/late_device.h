// A device whose results come late: operators are those of the CPU, but what they leave for the
// host is garbage until their event is done, which another thread sees to a while later. Whoever
// fetches or sends without waiting for the event gets the garbage.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <memory>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include "device/cpu/cpu_device.h"
#include "device/device.h"
#include "device/frame.h"
#include "tests/wrapped_device.h"

namespace convene {

// Of all ranks.
struct LateCounts {
  std::atomic<int64_t> operators{0};
  std::atomic<int64_t> fetches{0};
  std::atomic<int64_t> hidden_bytes{0};
  std::atomic<int64_t> not_done{0};  // answers that an event is not done yet
};

class LateEvent : public device::Event {
 public:
  explicit LateEvent(LateCounts& counts) : counts_(counts) {}

  void SetTo(const std::atomic<int64_t>& done, int64_t place) {
    done_.store(&done);
    place_.store(place);
  }
  bool IsDone() const override {
    const std::atomic<int64_t>* done = done_.load();
    if (done == nullptr || done->load() >= place_.load()) return true;
    ++counts_.not_done;
    return false;
  }
  void Wait() const override {
    while (!IsDone()) std::this_thread::sleep_for(std::chrono::microseconds(20));
  }

 private:
  LateCounts& counts_;
  std::atomic<const std::atomic<int64_t>*> done_{nullptr};
  std::atomic<int64_t> place_{0};
};

class LateStream : public device::Stream {
 public:
  LateStream(std::unique_ptr<device::Stream> cpu, const device::StreamOptions& options,
             LateCounts& counts)
      : cpu_(std::move(cpu)),
        wire_(options.wire),
        is_divided_(options.roles.attention_parts() > 1),
        counts_(counts),
        end_(counts),
        vocab_size_(options.whole_spec.vocab_size),
        thread_([this] { Reveal(); }) {}
  ~LateStream() override {
    const std::lock_guard lock(mutex_);
    ending_ = true;
    wake_.notify_one();
  }

  void Record(device::Event& event) override {
    static_cast<LateEvent&>(event).SetTo(done_, num_enqueued_);
  }
  void WatchExchanges(std::function<bool()> exchanging) override {
    cpu_->WatchExchanges(std::move(exchanging));
  }
  Status status() const override { return cpu_->status(); }
  device::StepStatistics& statistics() override { return cpu_->statistics(); }

  void Begin(device::Frame& frame) override {
    Enqueue([&] { cpu_->Begin(frame); });
  }
  Status Embed(bool encoder, device::Frame& frame) override {
    return Enqueue([&] { return cpu_->Embed(encoder, frame); });
  }
  void Normalize(const device::Layer& layer, bool cross, device::Frame& frame) override {
    Enqueue([&] { cpu_->Normalize(layer, cross, frame); },
            {OwnRowsOf(frame, device::TravellingRows::kNormed)});
  }
  void NormalizeDense(const device::Layer& layer, device::Frame& frame) override {
    Enqueue([&] { cpu_->NormalizeDense(layer, frame); },
            {OwnRowsOf(frame, device::TravellingRows::kNormed)});
  }
  void NormalizeFinal(bool encoder, device::Frame& frame) override {
    Enqueue([&] { cpu_->NormalizeFinal(encoder, frame); },
            {OwnRowsOf(frame, device::TravellingRows::kNormed),
             OwnRowsOf(frame, device::TravellingRows::kStates)});
  }
  void KeepWanted(device::Frame& frame) override {
    Enqueue([&] { cpu_->KeepWanted(frame); });
  }
  Status Project(const device::Layer& layer, device::Frame& frame) override {
    const size_t count = static_cast<size_t>(frame.rows.num_rows()) * 2;
    return Enqueue(
        [&] { return cpu_->Project(layer, frame); },
        {std::as_writable_bytes(frame.row_buffers.squares.subspan(frame.part * count, count))});
  }
  Status Attend(const device::Layer& layer, const AttentionTask& task,
                device::Frame& frame) override {
    std::vector<std::span<std::byte>> leaves;
    if (is_divided_) leaves.push_back(frame.row_buffers.sums_out);
    return Enqueue([&] { return cpu_->Attend(layer, task, frame); }, leaves);
  }
  Status BeginAttention(const device::Layer& layer, device::Frame& frame) override {
    return Enqueue([&] { return cpu_->BeginAttention(layer, frame); });
  }
  Status AttendSequences(const device::Layer& layer, SequenceRange sequences, bool only_wanted,
                         device::Frame& frame) override {
    return Enqueue([&] { return cpu_->AttendSequences(layer, sequences, only_wanted, frame); });
  }
  Status EndAttention(const device::Layer& layer, bool only_wanted, device::Frame& frame) override {
    return Enqueue([&] { return cpu_->EndAttention(layer, only_wanted, frame); });
  }
  int64_t AttentionRowBytes(device::AttentionRows kind, const device::Layer& layer) const override {
    return cpu_->AttentionRowBytes(kind, layer);
  }
  void PackAttention(device::AttentionRows kind, const device::Layer& layer,
                     const device::Frame& frame, std::byte* to) override {
    Enqueue([&] { cpu_->PackAttention(kind, layer, frame, to); });
  }
  void UnpackAttention(device::AttentionRows kind, const device::Layer& layer,
                       const std::byte* from, device::Frame& frame) override {
    Enqueue([&] { cpu_->UnpackAttention(kind, layer, from, frame); });
  }
  void AddPartials(device::Frame& frame) override {
    Enqueue([&] { cpu_->AddPartials(frame); });
  }
  Status StoreCross(const device::Layer& layer, device::Frame& frame) override {
    return Enqueue([&] { return cpu_->StoreCross(layer, frame); });
  }
  Status Dense(const device::Layer& layer, device::Frame& frame) override {
    return Enqueue([&] { return cpu_->Dense(layer, frame); });
  }
  Status Route(const device::Layer& layer, device::Frame& frame) override {
    return Enqueue([&] { return cpu_->Route(layer, frame); });
  }
  bool KeepsRouting() const override { return false; }
  Status RouteHere(const device::Layer& layer, device::Frame& frame) override {
    return Route(layer, frame);
  }
  Status Predict(const device::Layer& next, device::Frame& frame) override {
    return cpu_->Predict(next, frame);
  }
  void FetchRouting(device::Frame& frame) override {
    ExpectDone();
    cpu_->FetchRouting(frame);
  }
  void PackDispatch(device::Frame& frame) override {
    std::vector<std::span<std::byte>> leaves;
    for (const auto& row : frame.expert_rows.outgoing()) {
      leaves.emplace_back(row.to, static_cast<size_t>(wire_.dispatch_bytes));
    }
    Enqueue([&] { cpu_->PackDispatch(frame); }, leaves);
  }
  Status Shared(const device::Layer& layer, device::Frame& frame) override {
    return Enqueue([&] { return cpu_->Shared(layer, frame); });
  }
  Status Experts(const device::Layer& layer, device::Frame& frame) override {
    return Enqueue([&] { return cpu_->Experts(layer, frame); });
  }
  void Reduce(std::span<const device::ExpertRows::Returning> sums, device::Frame& frame) override {
    std::vector<std::span<std::byte>> leaves;
    for (const auto& sum : sums)
      leaves.emplace_back(sum.to, static_cast<size_t>(wire_.returned_bytes));
    Enqueue([&] { cpu_->Reduce(sums, frame); }, leaves);
  }
  void Finish(const device::Layer& layer, device::Frame& frame) override {
    Enqueue([&] { cpu_->Finish(layer, frame); });
  }
  Status Head(std::span<const device::HeadRow> rows, bool largest_suffices) override {
    largest_.assign(largest_suffices ? rows.size() : 0, -1);
    return Enqueue([&] { return cpu_->Head(rows, largest_suffices); });
  }
  // Where the largest suffices, that is all there is.
  device::FetchedLogits FetchLogits() override {
    ExpectDone();
    const device::FetchedLogits logits = cpu_->FetchLogits();
    if (largest_.empty()) return logits;
    for (size_t i = 0; i < largest_.size(); ++i) {
      const float* row = logits.rows.row(static_cast<int64_t>(i));
      largest_[i] = static_cast<int32_t>(std::max_element(row, row + vocab_size_) - row);
    }
    return {.rows = {}, .largest = largest_.data()};
  }
  bool FetchAllFinite(const device::Frame& frame) override {
    ExpectDone();
    return cpu_->FetchAllFinite(frame);
  }

 private:
  struct Hidden {
    std::span<std::byte> place;
    std::vector<std::byte> bytes;
  };

  static std::span<std::byte> OwnRowsOf(const device::Frame& frame, device::TravellingRows kind) {
    return frame.memory->HostRows(kind, frame.own());
  }

  // Runs an operator behind the one before; what it `leaves` for the host cannot be seen yet.
  template <typename Operator>
  auto Enqueue(Operator&& run, const std::vector<std::span<std::byte>>& leaves = {})
      -> decltype(run()) {
    Record(end_);
    end_.Wait();
    ++counts_.operators;
    struct Hider {
      ~Hider() { stream.Hide(leaves); }
      LateStream& stream;
      const std::vector<std::span<std::byte>>& leaves;
    } hider{*this, leaves};
    return run();
  }

  void Hide(const std::vector<std::span<std::byte>>& leaves) {
    const std::lock_guard lock(mutex_);
    for (const std::span<std::byte> place : leaves) {
      hidden_.push_back({place, {place.begin(), place.end()}});
      if (!place.empty()) std::memset(place.data(), 0xff, place.size());  // NaN
      counts_.hidden_bytes += std::ssize(place);
    }
    ++num_enqueued_;
    wake_.notify_one();
  }

  void Reveal() {
    std::unique_lock lock(mutex_);
    for (;;) {
      wake_.wait(lock, [&] { return ending_ || done_.load() < num_enqueued_; });
      if (ending_) return;
      lock.unlock();
      std::this_thread::sleep_for(std::chrono::microseconds(200));
      lock.lock();
      for (const Hidden& hidden : hidden_) {
        std::memcpy(hidden.place.data(), hidden.bytes.data(), hidden.bytes.size());
      }
      hidden_.clear();
      done_.store(num_enqueued_);
    }
  }

  void ExpectDone() {
    ++counts_.fetches;
    EXPECT_EQ(done_.load(), num_enqueued_) << "fetched too early";
  }

  std::unique_ptr<device::Stream> cpu_;
  device::WireRows wire_;
  bool is_divided_;
  LateCounts& counts_;
  LateEvent end_;
  std::mutex mutex_;
  std::condition_variable wake_;
  std::vector<Hidden> hidden_;  // with mutex_, as is the next one
  bool ending_ = false;
  int64_t num_enqueued_ = 0;  // written by the thread that enqueues, with mutex_
  std::atomic<int64_t> done_{0};
  int vocab_size_;
  std::vector<int32_t> largest_;  // of the latest Head's rows; none: all logits are fetched
  std::jthread thread_;
};

class LateDevice : public WrappedDevice {
 public:
  LateDevice(std::unique_ptr<device::Device> cpu, LateCounts& counts)
      : WrappedDevice(std::move(cpu)), counts_(counts) {}

  const char* name() const override { return "late CPU"; }
  Result<std::unique_ptr<device::Stream>> CreateStream(weights::WeightStore& weights,
                                                       device::KvCache& cache,
                                                       const device::StreamOptions& options,
                                                       memory::Ledger& ledger) override {
    auto stream = WrappedDevice::CreateStream(weights, cache, options, ledger);
    if (!stream) return stream.error();
    return std::unique_ptr<device::Stream>(
        std::make_unique<LateStream>(*std::move(stream), options, counts_));
  }
  std::unique_ptr<device::Event> CreateEvent() override {
    return std::make_unique<LateEvent>(counts_);
  }

 private:
  LateCounts& counts_;
};

}  // namespace convene
