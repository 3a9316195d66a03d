// For tests: copies of memory, each of which fails that is made while somebody says so.
#pragma once

#include <atomic>
#include <cstring>
#include <utility>

#include "memory/copy_lane.h"

namespace convene::memory {

class FailingLane final : public CopyLane {
 public:
  // Keeps a reference.
  explicit FailingLane(const std::atomic<bool>& fails) : fails_(fails) {}

  void Copy(std::byte* to, const std::byte* from, size_t size_bytes) override {
    if (fails_) {
      has_failed_ = true;
    } else {
      std::memcpy(to, from, size_bytes);
    }
  }
  Status Wait() override {
    if (std::exchange(has_failed_, false)) return Error{"the copy failed"};
    return {};
  }

 private:
  const std::atomic<bool>& fails_;
  bool has_failed_ = false;
};

}  // namespace convene::memory
