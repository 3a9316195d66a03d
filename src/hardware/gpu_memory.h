// Memory of a GPU, and memory of the host that GPUs copy from and to at full speed (pinned),
// without CUDA's headers. It is no allocator: each is a mapping of its own, for megabytes and more.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <utility>

#include "base/result.h"
#include "hardware/huge_buffer.h"

namespace convene::hardware {

// Any thread may have it and destroy it; destroying waits for what is under way on the GPU. Whoever
// allocates calls CUDA for that GPU from then on (cudaSetDevice): a process computes on one.
class GpuMemory {
 public:
  GpuMemory() = default;  // empty

  // `size_bytes` of zeros in the memory of the GPU with this number (hardware/gpu.h), aligned to
  // 256; 0 gives an empty one. Only the GPU reads and writes them. Errors: there is no such GPU;
  // ResourceExhausted, which names `purpose` ("the KV cache"), the size and what is free.
  static Result<GpuMemory> OnDevice(int gpu, size_t size_bytes, std::string_view purpose);

  // The same in the host's memory, for host and GPUs alike; pages are taken at once, by several
  // threads where there are many of them. Its addresses are the same on the GPU.
  static Result<GpuMemory> Pinned(int gpu, size_t size_bytes, std::string_view purpose);

  ~GpuMemory() { Free(); }
  GpuMemory(GpuMemory&& other) noexcept { *this = std::move(other); }
  GpuMemory& operator=(GpuMemory&& other) noexcept {
    if (this != &other) {
      Free();
      data_ = std::exchange(other.data_, nullptr);
      size_bytes_ = std::exchange(other.size_bytes_, 0);
      origin_ = std::exchange(other.origin_, Origin::kNone);
      host_ = std::move(other.host_);
    }
    return *this;
  }

  std::byte* data() const { return data_; }
  size_t size_bytes() const { return size_bytes_; }
  std::span<std::byte> bytes() const { return {data_, size_bytes_}; }

 private:
  enum class Origin : uint8_t {
    kNone,
    kDevice,
    kRegistered,   // host_, made known to the GPU
    kPinnedByGpu,  // host memory that CUDA has allocated
  };

  GpuMemory(std::byte* data, size_t size_bytes, Origin origin)
      : data_(data), size_bytes_(size_bytes), origin_(origin) {}
  void Free();

  std::byte* data_ = nullptr;
  size_t size_bytes_ = 0;
  Origin origin_ = Origin::kNone;
  HugeBuffer host_;
};

}  // namespace convene::hardware
