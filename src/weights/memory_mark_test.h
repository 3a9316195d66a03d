// The most that this process has in memory from some moment on, for tests of what is to stay
// little.
#pragma once

#include <algorithm>
#include <cstdint>
#include <fstream>

#include "hardware/memory_status.h"

namespace convene::weights {

class MemoryMark {
 public:
  // The kernel's mark, which earlier tests have pushed up, falls to what is there now.
  MemoryMark() {
    std::ofstream("/proc/self/clear_refs") << "5\n";
    const hardware::ResidentMemory now = hardware::ReadResidentMemory();
    before_bytes_ = now.own_bytes + now.file_bytes;
    constexpr uint64_t kNoise = uint64_t{4} << 20;
    is_set_ = now.peak_bytes > 0 && now.peak_bytes < before_bytes_ + kNoise;
#ifdef CONVENE_SANITIZED  // a sanitizer has its own beside what is allocated, and keeps what is
                          // freed
    is_set_ = false;
#endif
  }

  // False: the kernel keeps no mark or does not let it fall, or a sanitizer's memory is in it.
  bool is_set() const { return is_set_; }
  // Since then, at most.
  uint64_t added_bytes() const {
    const uint64_t peak_bytes = hardware::ReadResidentMemory().peak_bytes;
    return peak_bytes - std::min(peak_bytes, before_bytes_);
  }

 private:
  uint64_t before_bytes_ = 0;
  bool is_set_ = false;
};

}  // namespace convene::weights
