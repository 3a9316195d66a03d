#include "hardware/memory_status.h"

#include <fmt/format.h>
#include <sys/resource.h>

#include <algorithm>
#include <optional>

#include "base/units.h"
#include "hardware/control_group.h"
#include "hardware/kernel_files.h"

namespace convene::hardware {
namespace {

constexpr uint64_t kKiB = 1024;

uint64_t Above(uint64_t limit, uint64_t used) { return limit > used ? limit - used : 0; }

void Limit(AvailableMemory& available, uint64_t bytes, std::string limited_by) {
  if (bytes < available.bytes) available = {bytes, std::move(limited_by)};
}

// What `resource` leaves above the kB that /proc/self/status gives under `used_key`.
void LimitByResource(AvailableMemory& available, int resource, const std::string& status,
                     const char* used_key, const char* description) {
  rlimit limit{};
  if (getrlimit(static_cast<__rlimit_resource_t>(resource), &limit) != 0) return;
  if (limit.rlim_cur == RLIM_INFINITY) return;
  const uint64_t used_bytes = NumberAfter(status, used_key).value_or(0) * kKiB;
  Limit(available, Above(limit.rlim_cur, used_bytes),
        fmt::format("{} of {}", description, FormatBytes(limit.rlim_cur)));
}

// A node has no MemAvailable. Pages of files can be dropped, as the kernel has it for the machine.
void LimitByNode(AvailableMemory& available, int node, const std::string& root) {
  const std::string status =
      ReadKernelFile(fmt::format("{}/sys/devices/system/node/node{}/meminfo", root, node))
          .value_or("");
  uint64_t free_kib = 0;
  for (const char* key : {"MemFree", "Active(file)", "Inactive(file)"}) {
    const auto kib = NumberAfter(status, fmt::format("Node {} {}", node, key));
    if (!kib) return;
    free_kib += *kib;
  }
  Limit(available, free_kib * kKiB,
        fmt::format("the free memory of NUMA node {}, to which memory is bound", node));
}

}  // namespace

Result<AvailableMemory> ReadAvailableMemory(const std::string& root,
                                            std::optional<int> bound_node) {
  const std::string meminfo = ReadKernelFile(root + "/proc/meminfo").value_or("");
  const std::optional<uint64_t> available_kib = NumberAfter(meminfo, "MemAvailable");
  if (!available_kib) return Error{"/proc/meminfo has no MemAvailable: is /proc mounted?"};
  AvailableMemory available{*available_kib * kKiB, "the free memory of this machine"};

  if (bound_node) LimitByNode(available, *bound_node, root);
  const std::string overcommit =
      ReadKernelFile(root + "/proc/sys/vm/overcommit_memory").value_or("");
  if (overcommit.starts_with('2')) {
    const uint64_t limit = NumberAfter(meminfo, "CommitLimit").value_or(0) * kKiB;
    const uint64_t used = NumberAfter(meminfo, "Committed_AS").value_or(0) * kKiB;
    Limit(available, Above(limit, used),
          fmt::format("the machine's commit limit of {} (vm.overcommit_memory=2)",
                      FormatBytes(limit)));
  }
  if (const auto group = TightestControlGroupMemory(root)) {
    Limit(available, group->available_bytes(),
          fmt::format("the control group's limit of {} ({})", FormatBytes(group->limit_bytes),
                      group->directory));
  }
  const std::string status = ReadKernelFile(root + "/proc/self/status").value_or("");
  LimitByResource(available, RLIMIT_AS, status, "VmSize", "the address space limit (ulimit -v)");
  LimitByResource(available, RLIMIT_DATA, status, "VmData", "the data limit (ulimit -d)");
  return available;
}

ResidentMemory ReadResidentMemory(const std::string& root) {
  const std::string status = ReadKernelFile(root + "/proc/self/status").value_or("");
  const auto bytes = [&](const char* key) { return NumberAfter(status, key).value_or(0) * kKiB; };
  return {.own_bytes = bytes("RssAnon") + bytes("RssShmem"),
          .file_bytes = bytes("RssFile"),
          .peak_bytes = bytes("VmHWM")};
}

void PeakMemory::Sample() {
  const ResidentMemory resident = ReadResidentMemory();
  peak_bytes_ =
      std::max({peak_bytes_, resident.peak_bytes, resident.own_bytes + resident.file_bytes});
}

}  // namespace convene::hardware
