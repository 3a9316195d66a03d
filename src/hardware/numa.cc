#include "hardware/numa.h"

#include <fmt/format.h>
#include <hwloc.h>

#include <cerrno>
#include <cstring>
#include <memory>

namespace convene::hardware {
namespace {

struct DestroyTopology {
  void operator()(hwloc_topology* topology) const { hwloc_topology_destroy(topology); }
};
struct FreeBitmap {
  void operator()(hwloc_bitmap_s* bitmap) const { hwloc_bitmap_free(bitmap); }
};
using Bitmap = std::unique_ptr<hwloc_bitmap_s, FreeBitmap>;

}  // namespace

Result<int> PlaceMemory(std::span<std::byte> memory, const std::vector<int>& cpus,
                        NumaPolicy policy) {
  if (policy == NumaPolicy::kLocal || memory.empty()) return 1;
  hwloc_topology_t raw = nullptr;
  if (hwloc_topology_init(&raw) != 0) return Error{"hwloc cannot start to read the machine"};
  const std::unique_ptr<hwloc_topology, DestroyTopology> topology(raw);
  hwloc_topology_set_type_filter(raw, HWLOC_OBJ_PU, HWLOC_TYPE_FILTER_KEEP_ALL);
  hwloc_topology_set_io_types_filter(raw, HWLOC_TYPE_FILTER_KEEP_NONE);
  if (hwloc_topology_load(raw) != 0) return Error{"hwloc cannot read the machine's topology"};

  const Bitmap cpu_set(hwloc_bitmap_alloc());
  const Bitmap nodes(hwloc_bitmap_alloc());
  for (const int cpu : cpus) hwloc_bitmap_set(cpu_set.get(), static_cast<unsigned>(cpu));
  hwloc_cpuset_to_nodeset(raw, cpu_set.get(), nodes.get());
  const int num_nodes = hwloc_bitmap_weight(nodes.get());
  if (num_nodes <= 1) return 1;
  if (hwloc_set_area_membind(raw, memory.data(), memory.size(), nodes.get(),
                             HWLOC_MEMBIND_INTERLEAVE, HWLOC_MEMBIND_BYNODESET) != 0) {
    return Error{fmt::format("cannot interleave memory over {} NUMA nodes ({}); use --numa local",
                             num_nodes, std::strerror(errno))};
  }
  return num_nodes;
}

}  // namespace convene::hardware
