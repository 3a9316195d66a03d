// Errors of CUDA's runtime as the house's, with what to change where that is known.
#pragma once

#include <cuda_runtime_api.h>
#include <fmt/format.h>

#include <string_view>

#include "base/result.h"

namespace convene::device {

inline Status CudaStatus(cudaError_t result, std::string_view what) {
  if (result == cudaSuccess) return {};
  std::string message = fmt::format("{} failed on the GPU: {} ({})", what,
                                    cudaGetErrorString(result), cudaGetErrorName(result));
  if (result == cudaErrorMemoryAllocation) {
    static_cast<void>(cudaGetLastError());  // nothing else is wrong with the device
    return ResourceExhausted(message +
                             "; give it less to do: a smaller --context, or fewer "
                             "sequences at once");
  }
  if (result == cudaErrorInsufficientDriver) {
    return Unavailable(message + "; install a driver that is as new as this build's CUDA");
  }
  return Internal(std::move(message));
}

}  // namespace convene::device
