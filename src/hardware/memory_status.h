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

// The most that this process has had in memory when it was last sampled, pages of mapped files
// among it: weights that are computed with where they are mapped, and the program's own code and
// libraries. So it is what a budget of memory is of. Where the kernel keeps no such mark (gVisor),
// it is the most at any Sample().
class PeakMemory {
 public:
  void Sample();
  uint64_t peak_bytes() const { return peak_bytes_; }

 private:
  uint64_t peak_bytes_ = 0;
};

}  // namespace convene::hardware
