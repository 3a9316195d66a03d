#include "hardware/hwloc_topology.h"

#include <fmt/format.h>

namespace convene::hardware {

Result<HwlocTopology> LoadHwlocTopology(const char* synthetic) {
  hwloc_topology_t raw = nullptr;
  if (hwloc_topology_init(&raw) != 0) return Error{"hwloc cannot start to read the machine"};
  HwlocTopology topology(raw);
  // Discovery must not move this thread about, and needs neither devices nor their libraries.
  unsigned long flags = HWLOC_TOPOLOGY_FLAG_DONT_CHANGE_BINDING;
  if (synthetic == nullptr) flags |= HWLOC_TOPOLOGY_FLAG_IS_THISSYSTEM;
  hwloc_topology_set_flags(raw, flags);
  hwloc_topology_set_io_types_filter(raw, HWLOC_TYPE_FILTER_KEEP_NONE);
  if (synthetic != nullptr && hwloc_topology_set_synthetic(raw, synthetic) != 0) {
    return Error{fmt::format("\"{}\" does not describe a machine in hwloc's notation", synthetic)};
  }
  if (hwloc_topology_load(raw) != 0) return Error{"hwloc cannot read the machine's topology"};
  return topology;
}

}  // namespace convene::hardware
