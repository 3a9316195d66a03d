// What Linux control groups (version 1 or 2) leave to this process: processors and memory.
// It reads limits and never sets them.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace convene::hardware {

// CPU time per time that the tightest group on the way to the root allows, as in 1.5 processors.
// Nothing if there is no quota. `root` stands before /proc and /sys, for tests.
std::optional<double> ControlGroupCpuQuota(const std::string& root = "");

struct ControlGroupMemory {
  uint64_t limit_bytes = 0;
  uint64_t used_bytes = 0;  // without page cache, which the kernel drops before it fails
  std::string directory;    // of the group

  uint64_t available_bytes() const {
    return used_bytes < limit_bytes ? limit_bytes - used_bytes : 0;
  }
};

// Of the groups on the way to the root, the one with the least memory available; nothing if none
// has a limit. `root` as above.
std::optional<ControlGroupMemory> TightestControlGroupMemory(const std::string& root = "");

}  // namespace convene::hardware
