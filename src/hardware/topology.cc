#include "hardware/topology.h"

#include <fmt/format.h>
#include <hwloc.h>

#include <algorithm>

#include "base/units.h"
#include "hardware/affinity.h"
#include "hardware/control_group.h"
#include "hardware/hwloc_topology.h"

namespace convene::hardware {
namespace {

std::vector<int> CpusOf(hwloc_const_bitmap_t set, hwloc_const_bitmap_t usable) {
  std::vector<int> cpus;
  for (int cpu = hwloc_bitmap_first(set); cpu >= 0; cpu = hwloc_bitmap_next(set, cpu)) {
    if (hwloc_bitmap_isset(usable, cpu)) cpus.push_back(cpu);
  }
  return cpus;
}

std::vector<CacheLevel> CachesOf(hwloc_topology_t topology, hwloc_const_bitmap_t usable) {
  std::vector<CacheLevel> caches;
  for (const hwloc_obj_type_t type :
       {HWLOC_OBJ_L1CACHE, HWLOC_OBJ_L2CACHE, HWLOC_OBJ_L3CACHE, HWLOC_OBJ_L4CACHE}) {
    CacheLevel level{.level = type - HWLOC_OBJ_L1CACHE + 1};
    for (hwloc_obj_t cache = nullptr;
         (cache = hwloc_get_next_obj_by_type(topology, type, cache)) != nullptr;) {
      if (!hwloc_bitmap_intersects(cache->cpuset, usable)) continue;
      level.size_bytes = std::max<uint64_t>(level.size_bytes, cache->attr->cache.size);
      ++level.count;
    }
    if (level.size_bytes > 0) caches.push_back(level);
  }
  return caches;
}

CpuIdentity IdentityOf(hwloc_topology_t topology) {
  CpuIdentity cpu;
  const hwloc_obj_t package = hwloc_get_obj_by_type(topology, HWLOC_OBJ_PACKAGE, 0);
  const char* name = package ? hwloc_obj_get_info_by_name(package, "CPUModel") : nullptr;
  if (name != nullptr) cpu.name = name;
  for (const CacheLevel& level : CachesOf(topology, hwloc_topology_get_topology_cpuset(topology))) {
    cpu.cache_bytes.push_back(level.size_bytes);
  }
  return cpu;
}

Result<Topology> Describe(hwloc_topology_t machine, const std::vector<int>& usable_cpus) {
  const HwlocBitmap usable(hwloc_bitmap_alloc());
  for (const int cpu : usable_cpus) hwloc_bitmap_set(usable.get(), static_cast<unsigned>(cpu));

  Topology topology;
  // Kernels that hide the cores still show their logical CPUs.
  const bool has_cores = hwloc_get_nbobjs_by_type(machine, HWLOC_OBJ_CORE) > 0;
  const hwloc_obj_type_t core_type = has_cores ? HWLOC_OBJ_CORE : HWLOC_OBJ_PU;
  for (hwloc_obj_t core = nullptr;
       (core = hwloc_get_next_obj_by_type(machine, core_type, core)) != nullptr;) {
    std::vector<int> cpus = CpusOf(core->cpuset, usable.get());
    if (!cpus.empty()) topology.cores.push_back(std::move(cpus));
  }
  if (topology.cores.empty()) {
    return Error{
        fmt::format("none of the {} CPUs of the affinity mask is in the machine's topology",
                    usable_cpus.size())};
  }

  topology.num_numa_nodes = 0;
  for (hwloc_obj_t node = nullptr;
       (node = hwloc_get_next_obj_by_type(machine, HWLOC_OBJ_NUMANODE, node)) != nullptr;) {
    if (hwloc_bitmap_intersects(node->cpuset, usable.get())) ++topology.num_numa_nodes;
  }
  topology.num_numa_nodes = std::max(topology.num_numa_nodes, 1);
  topology.caches = CachesOf(machine, usable.get());
  topology.cpu = IdentityOf(machine);
  return topology;
}

}  // namespace

int Topology::num_cpus() const {
  size_t count = 0;
  for (const std::vector<int>& core : cores) count += core.size();
  return static_cast<int>(count);
}

uint64_t Topology::last_level_cache_bytes() const {
  return caches.empty() ? 0 : caches.back().size_bytes * static_cast<uint64_t>(caches.back().count);
}

Result<Topology> ReadTopology() {
  const Result<std::vector<int>> usable_cpus = CurrentAffinity();
  if (!usable_cpus) return usable_cpus.error();
  const Result<HwlocTopology> machine = LoadHwlocTopology(nullptr);
  if (!machine) return machine.error();
  Result<Topology> topology = Describe(machine->get(), *usable_cpus);
  if (topology) {
    topology->cpu.cpuid = ReadCpuid();
    topology->cpu_quota = ControlGroupCpuQuota();
  }
  return topology;
}

Result<Topology> SyntheticTopology(const std::string& description,
                                   const std::vector<int>& usable_cpus) {
  const Result<HwlocTopology> machine = LoadHwlocTopology(description.c_str());
  if (!machine) return machine.error();
  return Describe(machine->get(), usable_cpus);
}

Result<std::vector<int>> CpusForRank(const Topology& topology, LocalRank local,
                                     std::optional<int> num_threads) {
  CHECK(local.count >= 1 && local.rank >= 0 && local.rank < local.count, "rank {} of {}",
        local.rank, local.count);
  CHECK(!topology.cores.empty());
  const int64_t num_cores = std::ssize(topology.cores);
  int64_t begin = num_cores * local.rank / local.count;
  int64_t end = num_cores * (local.rank + 1) / local.count;
  if (num_cores < local.count) {
    begin = local.rank % num_cores;
    end = begin + 1;
  }

  // First one CPU of each core, then the second of each, and so on.
  std::vector<int> cpus;
  for (size_t sibling = 0, before = 1; before != cpus.size(); ++sibling) {
    before = cpus.size();
    for (int64_t core = begin; core < end; ++core) {
      const std::vector<int>& siblings = topology.cores[static_cast<size_t>(core)];
      if (sibling < siblings.size()) cpus.push_back(siblings[sibling]);
    }
  }

  size_t wanted = static_cast<size_t>(end - begin);
  if (num_threads) {
    if (*num_threads < 1) {
      return Error{fmt::format("{} threads asked for: give at least 1", *num_threads)};
    }
    wanted = static_cast<size_t>(*num_threads);
    if (wanted > cpus.size()) {
      return Error{fmt::format(
          "{} asked for, but rank {} of {} on this host may use {} of the {} CPUs in the "
          "affinity mask: ask for at most {}, or widen the mask",
          FormatCount(wanted, "thread"), local.rank, local.count, cpus.size(), topology.num_cpus(),
          cpus.size())};
    }
  } else if (topology.cpu_quota) {
    // A thread above the quota would be stopped for part of each period, and the others wait for
    // it.
    const double quota = std::max(*topology.cpu_quota / local.count, 1.0);
    if (quota < static_cast<double>(wanted)) wanted = static_cast<size_t>(quota);
  }
  cpus.resize(wanted);
  return cpus;
}

Result<LaneCpus> SplitCpus(std::vector<int> cpus, int num_host) {
  const auto num_cpus = static_cast<int>(cpus.size());
  if (num_host < 0 || num_host >= num_cpus) {
    return Error{fmt::format(
        "{} of this rank's {} cannot be the host lane's: host_threads must be 0 to {}", num_host,
        FormatCount(static_cast<uint64_t>(num_cpus), "thread"), num_cpus - 1)};
  }
  const auto host = cpus.end() - num_host;
  return LaneCpus{.compute = {cpus.begin(), host}, .host = {host, cpus.end()}};
}

Result<std::vector<int>> CpusForThisRank(LocalRank local, std::optional<int> num_threads) {
  const Result<Topology> topology = ReadTopology();
  if (!topology) return topology.error();
  return CpusForRank(*topology, local, num_threads);
}

}  // namespace convene::hardware
