// How much memory this process can still have, and how much it has had. Knows no model and no plan.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "base/result.h"

namespace convene::hardware {

struct AvailableMemory {
  uint64_t bytes = 0;
  std::string limited_by;  // what sets it, to end a sentence: "the free memory of this machine"
};

// The least of: the machine's MemAvailable (and its commit limit, where overcommitting is
// forbidden), what is free on `bound_node`, the NUMA node outside of which no page may lie, what
// the control groups leave, and what the limits on address space and data (ulimit -v, -d) leave.
// `root` stands before /proc and /sys, for tests.
Result<AvailableMemory> ReadAvailableMemory(const std::string& root = "",
                                            std::optional<int> bound_node = {});

struct ResidentMemory {
  uint64_t own_bytes = 0;   // anonymous and shared memory: what only this process's end gives back
  uint64_t file_bytes = 0;  // pages of mapped files, which the kernel may drop
  uint64_t peak_bytes = 0;  // highest sum of both (VmHWM), kept by the kernel
};

// Of this process; zeros if /proc is not there. About 20 us.
ResidentMemory ReadResidentMemory(const std::string& root = "");

// The highest ResidentMemory::own_bytes at any Sample(). The kernel keeps no such mark, but memory
// of our own falls only where it is given back: sampled before each release of a large buffer, and
// at the end, this is the true peak (and ResidentMemory::peak_bytes bounds it from above).
class PeakMemory {
 public:
  void Sample();
  uint64_t peak_bytes() const { return peak_bytes_; }

 private:
  uint64_t peak_bytes_ = 0;
};

}  // namespace convene::hardware
