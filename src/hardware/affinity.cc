#include "hardware/affinity.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <memory>

namespace convene::hardware {
namespace {

struct FreeCpuSet {
  void operator()(cpu_set_t* set) const { CPU_FREE(set); }
};
using CpuSet = std::unique_ptr<cpu_set_t, FreeCpuSet>;

constexpr int kMaxCpus = 1 << 16;

// 0: of the calling thread.
Result<std::vector<int>> AffinityOf(pid_t process) {
  // The kernel refuses (EINVAL) a set smaller than its own, whose size it does not tell.
  for (int num_cpus = 1024; num_cpus <= kMaxCpus; num_cpus *= 2) {
    const size_t size_bytes = CPU_ALLOC_SIZE(num_cpus);
    const CpuSet set(CPU_ALLOC(num_cpus));
    CPU_ZERO_S(size_bytes, set.get());
    if (sched_getaffinity(process, size_bytes, set.get()) == 0) {
      std::vector<int> cpus;
      for (int cpu = 0; cpu < num_cpus; ++cpu) {
        if (CPU_ISSET_S(cpu, size_bytes, set.get())) cpus.push_back(cpu);
      }
      return cpus;
    }
    if (errno != EINVAL) break;
  }
  return SystemError("cannot read the CPU affinity mask", errno);
}

}  // namespace

Result<std::vector<int>> CurrentAffinity() { return AffinityOf(0); }

Result<std::vector<int>> AffinityOfParent() { return AffinityOf(getppid()); }

Status SetAffinity(const std::vector<int>& cpus) {
  const int num_cpus = cpus.empty() ? 1 : *std::max_element(cpus.begin(), cpus.end()) + 1;
  const size_t size_bytes = CPU_ALLOC_SIZE(num_cpus);
  const CpuSet set(CPU_ALLOC(num_cpus));
  CPU_ZERO_S(size_bytes, set.get());
  for (const int cpu : cpus) CPU_SET_S(cpu, size_bytes, set.get());
  if (sched_setaffinity(0, size_bytes, set.get()) == 0) return {};
  return SystemError(fmt::format("cannot confine a thread to CPU {}", fmt::join(cpus, ",")), errno);
}

}  // namespace convene::hardware
