// Large zeroed memory of this process, aligned to huge pages and asked to consist of them.
// It is no allocator: each buffer is a mapping of its own, for megabytes and more.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <utility>

#include "base/result.h"

namespace convene::hardware {

inline constexpr size_t kHugePageBytes = size_t{2} << 20;

class HugeBuffer {
 public:
  HugeBuffer() = default;  // empty

  // `size_bytes` of zeros, starting at a multiple of kHugePageBytes; 0 gives an empty buffer. Pages
  // are taken from the machine when first written, near the thread that writes them, so success
  // does not promise that there is memory for all: compare with ReadAvailableMemory first. Reads
  // and writes past the last whole huge page fault. Error: the system refuses. It names `purpose`
  // ("the KV cache"), the size and what is available.
  static Result<HugeBuffer> Allocate(size_t size_bytes, std::string_view purpose);

  ~HugeBuffer() { Free(); }
  HugeBuffer(HugeBuffer&& other) noexcept { *this = std::move(other); }
  HugeBuffer& operator=(HugeBuffer&& other) noexcept {
    if (this != &other) {
      Free();
      data_ = std::exchange(other.data_, nullptr);
      size_bytes_ = std::exchange(other.size_bytes_, 0);
    }
    return *this;
  }

  std::byte* data() const { return data_; }
  size_t size_bytes() const { return size_bytes_; }
  std::span<std::byte> bytes() const { return {data_, size_bytes_}; }

  // Of all buffers of this process that are alive.
  static size_t total_bytes() { return total_bytes_; }

  // How much of the buffer the kernel holds in huge pages now; 0 before it is written, and where
  // the kernel does not tell. Reads /proc/self/smaps: milliseconds.
  size_t huge_page_bytes() const;

 private:
  HugeBuffer(std::byte* data, size_t size_bytes) : data_(data), size_bytes_(size_bytes) {}
  void Free();

  static inline std::atomic<size_t> total_bytes_ = 0;
  std::byte* data_ = nullptr;
  size_t size_bytes_ = 0;
};

// Takes the memory of a part of a HugeBuffer from the machine now, and not when it is first
// written; what is there stays. False: the machine has none now, or a kernel before Linux 5.14;
// then it comes when it is written, as ever.
bool TakePages(std::span<std::byte> part);

}  // namespace convene::hardware
