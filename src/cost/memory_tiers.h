// The tiers of memory of a machine as data, fastest first: a GPU and its host, or RAM and the disk.
// What is computed over them and how fast that can be is hierarchical_roofline.h.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "cost/machine_profile.h"

namespace convene::cost {

struct MemoryTier {
  std::string name;  // "NVIDIA L4", "RAM", "disk"
  // FLOP/s of what computes where the tier's data lie; 0: nothing does; none: not known.
  std::optional<double> flops = {};
  double bytes_per_second = 0;     // between the tier and what computes there; 0: as flops
  double bytes = 0;                // that it holds; 0: not known
  double up_bytes_per_second = 0;  // to the next faster tier; 0 of the fastest
};

// Of a machine whose weights are in the format ("bf16", "int8", "int4" ...): its device's memory if
// it has one, RAM, and the disk where its rate was measured. `memory_bytes` above 0 takes the place
// of what the fastest tier holds. At least two tiers. Errors: the machine has one tier only, or a
// rate of its fast tier is not known; the message says how to get it.
Result<std::vector<MemoryTier>> TiersOf(const MachineProfile& machine, std::string_view format,
                                        double memory_bytes = 0);

}  // namespace convene::cost
