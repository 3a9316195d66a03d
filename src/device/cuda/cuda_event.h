// A place on a stream. Recording one costs nothing: it only notes how many operators were enqueued
// before it. Whether the device has come so far is asked of the device when somebody wants to know,
// and of all that was enqueued until then, which is done in order.
#pragma once

#include <cuda_runtime_api.h>

#include <atomic>
#include <cstdint>
#include <memory>

#include "base/check.h"
#include "device/stream.h"

namespace convene::device {

// How far a stream of the device has come. Shared by its events, which may outlive it.
class CudaProgress {
 public:
  explicit CudaProgress(cudaStream_t stream) : stream_(stream) {}
  CudaProgress(const CudaProgress&) = delete;
  CudaProgress& operator=(const CudaProgress&) = delete;

  int64_t num_enqueued() const { return num_enqueued_.load(std::memory_order_relaxed); }
  void AddEnqueued() { num_enqueued_.fetch_add(1, std::memory_order_relaxed); }

  bool IsDone(int64_t place) {
    if (done_.load(std::memory_order_acquire) >= place) return true;
    const int64_t enqueued = num_enqueued();
    if (cudaStreamQuery(stream_) == cudaErrorNotReady) return false;
    SetDone(enqueued);
    return true;
  }
  void Wait(int64_t place) {
    if (done_.load(std::memory_order_acquire) >= place) return;
    const int64_t enqueued = num_enqueued();
    // What went wrong is told by the next operator with a status (CudaStream).
    static_cast<void>(cudaStreamSynchronize(stream_));
    SetDone(enqueued);
  }

 private:
  void SetDone(int64_t place) {
    int64_t before = done_.load(std::memory_order_relaxed);
    while (before < place &&
           !done_.compare_exchange_weak(before, place, std::memory_order_release)) {
    }
  }

  cudaStream_t stream_;
  std::atomic<int64_t> num_enqueued_{0};
  std::atomic<int64_t> done_{0};
};

class CudaEvent final : public Event {
 public:
  void SetTo(const std::shared_ptr<CudaProgress>& progress) {
    progress_ = progress;
    place_ = progress->num_enqueued();
  }
  bool IsDone() const override { return progress_ == nullptr || progress_->IsDone(place_); }
  void Wait() const override {
    if (progress_ != nullptr) progress_->Wait(place_);
  }

 private:
  std::shared_ptr<CudaProgress> progress_;
  int64_t place_ = 0;
};

}  // namespace convene::device
