// Host memory for what travels between ranks, planned before anything is loaded and handed out
// once. It lies beside a frame's activations, which are the device's.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "base/check.h"

namespace convene::device {

// Of cache lines, which buffers and rows begin with.
constexpr int64_t WholeLines(int64_t size_bytes) { return (size_bytes + 63) / 64 * 64; }

// Made without memory it only counts, so that the same code first finds out how much a layout needs
// and later takes it.
class ExchangeMemory {
 public:
  ExchangeMemory() = default;
  explicit ExchangeMemory(std::span<std::byte> memory) : memory_(memory), counts_only_(false) {}

  // The next part, which begins a cache line; empty where it only counts.
  std::span<std::byte> Take(int64_t size_bytes) {
    const int64_t begin = used_bytes_;
    used_bytes_ += WholeLines(size_bytes);
    if (counts_only_) return {};
    CHECK(used_bytes_ <= std::ssize(memory_), "{} bytes of {} planned", used_bytes_,
          memory_.size());
    return memory_.subspan(static_cast<size_t>(begin), static_cast<size_t>(size_bytes));
  }

  // The same for `count` floats.
  std::span<float> TakeFloats(int64_t count) {
    const std::span<std::byte> bytes = Take(count * int64_t{sizeof(float)});
    return {reinterpret_cast<float*>(bytes.data()), bytes.size() / sizeof(float)};
  }

  int64_t used_bytes() const { return used_bytes_; }
  int64_t left_bytes() const { return std::ssize(memory_) - used_bytes_; }

 private:
  std::span<std::byte> memory_;
  bool counts_only_ = true;
  int64_t used_bytes_ = 0;
};

}  // namespace convene::device
