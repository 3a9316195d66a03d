#include "device/cuda/cuda_graphs.h"

#include <utility>

#include "base/check.h"
#include "device/cuda/cuda_error.h"

namespace convene::device {

void CudaGraphs::Clear() {
  for (auto& [key, step] : steps_) cudaGraphExecDestroy(step.graph);
  steps_.clear();
}

Status CudaGraphs::Begin(Key key, cudaStream_t stream) {
  CHECK(state_ == State::kNone, "a step within a step");
  key_ = std::move(key);
  if (steps_.contains(key_)) {
    state_ = State::kReplays;
    return {};
  }
  if (steps_.size() >= kMostGraphs) Clear();
  if (Status begun = CudaStatus(cudaStreamBeginCapture(stream, cudaStreamCaptureModeRelaxed),
                                "capturing a step");
      !begun) {
    return begun;
  }
  state_ = State::kCaptures;
  return {};
}

Status CudaGraphs::End(cudaStream_t stream, StepStatistics& statistics) {
  const State state = std::exchange(state_, State::kNone);
  if (state == State::kCaptures) {
    cudaGraph_t graph = nullptr;
    if (Status ended = CudaStatus(cudaStreamEndCapture(stream, &graph), "capturing a step");
        !ended) {
      return ended;
    }
    Step step;
    const cudaError_t made = cudaGraphInstantiate(&step.graph, graph, 0);
    cudaGraphDestroy(graph);
    if (Status done = CudaStatus(made, "capturing a step"); !done) return done;
    step.statistics = statistics;
    steps_.emplace(key_, step);
  }
  const Step& step = steps_.at(key_);
  if (state == State::kReplays) {
    const StepStatistics counted = statistics;  // by the host
    statistics = step.statistics;
    statistics.tokens = counted.tokens;
    statistics.logits_rows = counted.logits_rows;
  }
  return CudaStatus(cudaGraphLaunch(step.graph, stream), "a step");
}

void CudaGraphs::Abandon(cudaStream_t stream) {
  if (std::exchange(state_, State::kNone) != State::kCaptures) return;
  cudaGraph_t graph = nullptr;
  static_cast<void>(cudaStreamEndCapture(stream, &graph));
  if (graph != nullptr) cudaGraphDestroy(graph);
  static_cast<void>(cudaGetLastError());
}

}  // namespace convene::device
