// Where in a machine of several memory nodes pages lie: a buffer's, and a rank's. On machines with
// one node there is nothing to choose or to tell.
#pragma once

#include <cstddef>
#include <optional>
#include <span>
#include <vector>

#include "base/result.h"

namespace convene::hardware {

enum class NumaPolicy {
  // Interleaved where the threads span several nodes, local otherwise, and where the system refuses
  // (containers may).
  kAuto,
  kInterleave,  // pages in turn over the nodes of the threads: every thread sees the same bandwidth
  kLocal,       // each page on the node of the thread that first writes it
};

// Sets the policy for `memory` (whole pages of it, not written yet) that threads on the logical
// CPUs `cpus` will use. Returns over how many nodes its pages will be interleaved; 1: they will be
// local. Error: the system refuses kInterleave.
Result<int> PlaceMemory(std::span<std::byte> memory, const std::vector<int>& cpus,
                        NumaPolicy policy);

// The node on which the pages lie that threads on some CPUs write.
struct NumaHome {
  std::optional<int> node = {};  // unset: on several, or the machine has one alone
  bool is_bound = false;         // otherwise pages spill over to other nodes once that one is full
};

// Of pages without a policy of their own: where numactl, a launcher or a control group has bound
// them, otherwise on the node of all `cpus`. `synthetic`: on an invented machine (topology.h),
// where nothing is bound. Error: hwloc cannot read the machine.
Result<NumaHome> HomeOf(const std::vector<int>& cpus, const char* synthetic = nullptr);

}  // namespace convene::hardware
