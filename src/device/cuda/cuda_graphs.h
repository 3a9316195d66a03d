// Steps of generated tokens, run again as one: all that a step enqueues is captured once for each
// of its shapes, and the next step of the same shape launches it with a single call. A launch costs
// the host more than most of these kernels take. What differs from step to step lies in memory that
// is brought before (CudaUploads), at the same addresses.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <map>
#include <vector>

#include "base/result.h"
#include "device/step_statistics.h"

namespace convene::device {

class CudaGraphs {
 public:
  // All that the launches of a step depend on: counts and addresses.
  using Key = std::vector<int64_t>;

  CudaGraphs() = default;
  CudaGraphs(const CudaGraphs&) = delete;
  CudaGraphs& operator=(const CudaGraphs&) = delete;
  ~CudaGraphs() { Clear(); }

  // From here on until End what is enqueued on the stream is captured, or, where a step of this key
  // was before, to be left out: `replays`.
  Status Begin(Key key, cudaStream_t stream);
  bool is_active() const { return state_ != State::kNone; }
  bool replays() const { return state_ == State::kReplays; }
  // Launches the step. `statistics` are what it did, or, of a replayed one, become that.
  Status End(cudaStream_t stream, StepStatistics& statistics);
  // What was captured is not to be run: something failed meanwhile.
  void Abandon(cudaStream_t stream);

 private:
  // More shapes than these are not met by turns.
  static constexpr size_t kMostGraphs = 64;
  enum class State { kNone, kCaptures, kReplays };
  struct Step {
    cudaGraphExec_t graph = nullptr;
    StepStatistics statistics = {};
  };
  void Clear();

  State state_ = State::kNone;
  Key key_;
  std::map<Key, Step> steps_;
};

}  // namespace convene::device
