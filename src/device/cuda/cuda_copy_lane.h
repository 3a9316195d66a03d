// Copies to and from a GPU on a stream of their own, which one of its copy engines carries out.
#pragma once

#include <cuda_runtime_api.h>

#include <memory>
#include <utility>

#include "device/cuda/cuda_error.h"
#include "memory/copy_lane.h"

namespace convene::device {

class CudaCopyLane final : public memory::CopyLane {
 public:
  static Result<std::unique_ptr<CudaCopyLane>> Create() {
    std::unique_ptr<CudaCopyLane> lane(new CudaCopyLane);
    // Not behind the default stream, nor before it.
    const Status made = CudaStatus(cudaStreamCreateWithFlags(&lane->stream_, cudaStreamNonBlocking),
                                   "making a stream for copies");
    if (!made) return made.error();
    return lane;
  }
  ~CudaCopyLane() override {
    if (stream_ == nullptr) return;
    cudaStreamSynchronize(stream_);
    cudaStreamDestroy(stream_);
  }

  void Copy(std::byte* to, const std::byte* from, size_t size_bytes) override {
    Note(cudaMemcpyAsync(to, from, size_bytes, cudaMemcpyDefault, stream_));
  }
  Status Wait() override {
    Note(cudaStreamSynchronize(stream_));
    return CudaStatus(std::exchange(failed_, cudaSuccess), "a copy between host and device");
  }

 private:
  CudaCopyLane() = default;
  void Note(cudaError_t result) {
    if (failed_ == cudaSuccess) failed_ = result;
  }

  cudaStream_t stream_ = nullptr;
  cudaError_t failed_ = cudaSuccess;
};

}  // namespace convene::device
