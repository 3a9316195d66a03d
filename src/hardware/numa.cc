#include "hardware/numa.h"

#include <fmt/format.h>
#include <linux/mempolicy.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "hardware/hwloc_topology.h"

namespace convene::hardware {
namespace {

HwlocBitmap SetOf(const std::vector<int>& cpus) {
  HwlocBitmap set(hwloc_bitmap_alloc());
  for (const int cpu : cpus) hwloc_bitmap_set(set.get(), static_cast<unsigned>(cpu));
  return set;
}

std::optional<int> OnlyOneOf(hwloc_const_nodeset_t nodes) {
  if (hwloc_bitmap_weight(nodes) != 1) return std::nullopt;
  return hwloc_bitmap_first(nodes);
}

// Unset: each page lies on the node of the thread that first writes it.
std::optional<NumaHome> ReadPagePolicy(hwloc_topology_t machine) {
  const auto allowed = OnlyOneOf(hwloc_topology_get_allowed_nodeset(machine));
  if (allowed) return NumaHome{allowed, true};
  const HwlocBitmap nodes(hwloc_bitmap_alloc());
  hwloc_membind_policy_t policy = HWLOC_MEMBIND_FIRSTTOUCH;
  const int told = hwloc_get_membind(machine, nodes.get(), &policy,
                                     HWLOC_MEMBIND_THREAD | HWLOC_MEMBIND_BYNODESET);
  if (told != 0 || policy == HWLOC_MEMBIND_FIRSTTOUCH) return std::nullopt;
  // hwloc tells a node that is only preferred like one to which memory is bound.
  int mode = MPOL_DEFAULT;
  const bool is_strict = syscall(SYS_get_mempolicy, &mode, nullptr, 0, nullptr, 0) == 0 &&
                         (mode & ~MPOL_MODE_FLAGS) == MPOL_BIND;
  const std::optional<int> node = OnlyOneOf(nodes.get());
  return NumaHome{node, node && is_strict};
}

}  // namespace

Result<int> PlaceMemory(std::span<std::byte> memory, const std::vector<int>& cpus,
                        NumaPolicy policy) {
  if (policy == NumaPolicy::kLocal || memory.empty()) return 1;
  const Result<HwlocTopology> topology = LoadHwlocTopology(nullptr);
  if (!topology) return topology.error();
  hwloc_topology_t raw = topology->get();
  const HwlocBitmap cpu_set = SetOf(cpus);
  const HwlocBitmap nodes(hwloc_bitmap_alloc());
  hwloc_cpuset_to_nodeset(raw, cpu_set.get(), nodes.get());
  const int num_nodes = hwloc_bitmap_weight(nodes.get());
  if (num_nodes <= 1) return 1;
  if (hwloc_set_area_membind(raw, memory.data(), memory.size(), nodes.get(),
                             HWLOC_MEMBIND_INTERLEAVE, HWLOC_MEMBIND_BYNODESET) != 0) {
    if (policy == NumaPolicy::kAuto) return 1;
    return Error{fmt::format("cannot interleave memory over {} NUMA nodes ({}); use --numa local",
                             num_nodes, std::strerror(errno)),
                 KindOfErrno(errno)};
  }
  return num_nodes;
}

Result<NumaHome> HomeOf(const std::vector<int>& cpus, const char* synthetic) {
  const Result<HwlocTopology> machine = LoadHwlocTopology(synthetic);
  if (!machine) return machine.error();
  // Nodes that this process may not use are still nodes.
  if (OnlyOneOf(hwloc_topology_get_complete_nodeset(machine->get()))) return NumaHome{};
  if (synthetic == nullptr) {
    if (const auto told = ReadPagePolicy(machine->get())) return *told;
  }
  const HwlocBitmap cpu_set = SetOf(cpus);
  NumaHome home;
  for (hwloc_obj_t node = nullptr;
       (node = hwloc_get_next_obj_by_type(machine->get(), HWLOC_OBJ_NUMANODE, node)) != nullptr;) {
    if (node->attr->numanode.local_memory == 0) continue;
    if (!hwloc_bitmap_intersects(node->cpuset, cpu_set.get())) continue;
    if (home.node || !hwloc_bitmap_isincluded(cpu_set.get(), node->cpuset)) return NumaHome{};
    home.node = static_cast<int>(node->os_index);
  }
  return home;
}

}  // namespace convene::hardware
