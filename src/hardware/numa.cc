#include "hardware/numa.h"

#include <fmt/format.h>

#include <cerrno>
#include <cstring>

#include "hardware/hwloc_topology.h"

namespace convene::hardware {
Result<int> PlaceMemory(std::span<std::byte> memory, const std::vector<int>& cpus,
                        NumaPolicy policy) {
  if (policy == NumaPolicy::kLocal || memory.empty()) return 1;
  const Result<HwlocTopology> topology = LoadHwlocTopology(nullptr);
  if (!topology) return topology.error();
  hwloc_topology_t raw = topology->get();
  const HwlocBitmap cpu_set(hwloc_bitmap_alloc());
  const HwlocBitmap nodes(hwloc_bitmap_alloc());
  for (const int cpu : cpus) hwloc_bitmap_set(cpu_set.get(), static_cast<unsigned>(cpu));
  hwloc_cpuset_to_nodeset(raw, cpu_set.get(), nodes.get());
  const int num_nodes = hwloc_bitmap_weight(nodes.get());
  if (num_nodes <= 1) return 1;
  if (hwloc_set_area_membind(raw, memory.data(), memory.size(), nodes.get(),
                             HWLOC_MEMBIND_INTERLEAVE, HWLOC_MEMBIND_BYNODESET) != 0) {
    return Error{fmt::format("cannot interleave memory over {} NUMA nodes ({}); use --numa local",
                             num_nodes, std::strerror(errno)),
                 KindOfErrno(errno)};
  }
  return num_nodes;
}

}  // namespace convene::hardware
