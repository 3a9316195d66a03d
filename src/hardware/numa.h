// Where in a machine of several memory nodes a buffer's pages lie. On machines with one node there
// is nothing to choose.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "base/result.h"

namespace convene::hardware {

enum class NumaPolicy {
  kAuto,        // interleaved where the threads span several nodes, local otherwise
  kInterleave,  // pages in turn over the nodes of the threads: every thread sees the same bandwidth
  kLocal,       // each page on the node of the thread that first writes it
};

// Sets the policy for `memory` (whole pages of it, not written yet) that threads on the logical
// CPUs `cpus` will use. Returns over how many nodes its pages will be interleaved; 1: they will be
// local. Error: the system refuses.
Result<int> PlaceMemory(std::span<std::byte> memory, const std::vector<int>& cpus,
                        NumaPolicy policy);

}  // namespace convene::hardware
