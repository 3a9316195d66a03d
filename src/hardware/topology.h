// The processors, caches and memory nodes this process may use, and a rank's share of them.
// It reads the machine and divides it; pinning is the thread pool's.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/environment.h"
#include "base/result.h"
#include "hardware/cpu_identity.h"

namespace convene::hardware {

struct CacheLevel {
  int level = 0;            // 1 is nearest to the core
  uint64_t size_bytes = 0;  // of one cache for data (or for both)
  int count = 0;            // how many of them the usable cores have
};

struct Topology {
  CpuIdentity cpu;
  std::vector<std::vector<int>>
      cores;                        // usable logical CPUs of each physical core, near ones together
  std::vector<CacheLevel> caches;   // innermost first
  int num_numa_nodes = 1;           // with usable cores
  std::optional<double> cpu_quota;  // processors' worth of time that control groups allow

  int num_cpus() const;
  uint64_t last_level_cache_bytes() const;  // all of the last level together; 0 if unknown
};

// What the affinity mask of the calling thread leaves of this machine. Call it before a ThreadPool
// pins that thread. Takes some 10 ms.
Result<Topology> ReadTopology();

// An invented machine in hwloc's synthetic notation ("numa:2 core:4 pu:2"), for tests and plans;
// `usable_cpus` stands for the affinity mask.
Result<Topology> SyntheticTopology(const std::string& description,
                                   const std::vector<int>& usable_cpus);

// The logical CPUs on which rank `local.rank` of the `local.count` ranks on this host runs its
// threads, one each. The ranks divide the physical cores into neighbouring shares that differ by at
// most one; where there are fewer cores than ranks, several ranks share a core.
// Without `num_threads`: one CPU per core of the share, at most the rank's part of the CPU quota.
// With it: that many, siblings on the same core only once all cores have a thread.
// What a launcher has bound each rank to would be divided once more, so the affinity mask must be
// that of all ranks on this host: comm/connect.h sees to it.
// Errors: `num_threads` below one or above the CPUs of the share.
Result<std::vector<int>> CpusForRank(const Topology& topology, LocalRank local,
                                     std::optional<int> num_threads);

// How a rank's CPUs are divided among what computes at the same time.
struct LaneCpus {
  std::vector<int> compute;    // of the compute lane, and of threads that seldom need a core
  std::vector<int> host = {};  // none: the host lane runs wherever `compute` has a core to spare
};

// The last `num_host` of a rank's CPUs are the host lane's. Error: the compute lane would have
// none.
Result<LaneCpus> SplitCpus(std::vector<int> cpus, int num_host);

// ReadTopology and CpusForRank together.
Result<std::vector<int>> CpusForThisRank(LocalRank local, std::optional<int> num_threads);

}  // namespace convene::hardware
