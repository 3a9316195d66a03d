// Memory of the device for tests of kernels: the host's own where kernels are emulated on the CPU,
// otherwise the device's, with copies. Errors end the test program.
#pragma once

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <utility>
#include <vector>

#include "kernels/cuda/stream.h"

#ifndef CONVENE_EMULATE_CUDA
#include <cuda_runtime_api.h>
#endif

namespace convene::kernels::cuda {

#ifdef CONVENE_EMULATE_CUDA
inline void* DeviceMalloc(size_t bytes) {
  return std::aligned_alloc(256, (bytes + 256) / 256 * 256);
}
inline void DeviceFree(void* data) { std::free(data); }
inline void CopyToDevice(void* to, const void* host, size_t bytes) {
  if (bytes > 0) std::memcpy(to, host, bytes);
}
inline void CopyToHost(void* host, const void* from, size_t bytes) {
  if (bytes > 0) std::memcpy(host, from, bytes);
}
// Waits for all that was enqueued, and ends the program where any of it failed.
inline void Synchronize() {}
#else
inline void CheckCuda(cudaError_t error, const char* what) {
  if (error == cudaSuccess) return;
  std::fprintf(stderr, "%s: %s\n", what, cudaGetErrorString(error));
  std::abort();
}
inline void Synchronize() {
  CheckCuda(cudaGetLastError(), "launch");
  CheckCuda(cudaDeviceSynchronize(), "synchronize");
}
inline void* DeviceMalloc(size_t bytes) {
  void* data = nullptr;
  CheckCuda(cudaMalloc(&data, bytes + 256), "cudaMalloc");
  return data;
}
inline void DeviceFree(void* data) { CheckCuda(cudaFree(data), "cudaFree"); }
inline void CopyToDevice(void* to, const void* host, size_t bytes) {
  CheckCuda(cudaMemcpy(to, host, bytes, cudaMemcpyHostToDevice), "copy to the device");
}
inline void CopyToHost(void* host, const void* from, size_t bytes) {
  Synchronize();
  CheckCuda(cudaMemcpy(host, from, bytes, cudaMemcpyDeviceToHost), "copy to the host");
}
#endif

// `size` elements of the device's memory, all bits zero unless made from the host's.
template <typename T>
class DeviceArray {
 public:
  DeviceArray() = default;
  explicit DeviceArray(size_t size) : DeviceArray(std::vector<T>(size)) {}
  explicit DeviceArray(const std::vector<T>& host)
      : data_(static_cast<T*>(DeviceMalloc(host.size() * sizeof(T)))), size_(host.size()) {
    CopyToDevice(data_, host.data(), size_ * sizeof(T));
  }
  DeviceArray(DeviceArray&& other) noexcept : data_(other.data_), size_(other.size_) {
    other.data_ = nullptr;
    other.size_ = 0;
  }
  DeviceArray& operator=(DeviceArray&& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(size_, other.size_);
    return *this;
  }
  ~DeviceArray() {
    if (data_ != nullptr) DeviceFree(data_);
  }

  // The device's address.
  T* data() const { return data_; }
  size_t size() const { return size_; }
  // Waits for all that was enqueued.
  std::vector<T> Host() const {
    std::vector<T> host(size_);
    CopyToHost(host.data(), data_, size_ * sizeof(T));
    return host;
  }
  void Set(const std::vector<T>& host) {
    CopyToDevice(data_, host.data(), host.size() * sizeof(T));
  }

 private:
  T* data_ = nullptr;
  size_t size_ = 0;
};

}  // namespace convene::kernels::cuda
