#include "hardware/control_group.h"

#include <algorithm>
#include <charconv>
#include <limits>
#include <sstream>
#include <string_view>
#include <vector>

#include "hardware/kernel_files.h"

namespace convene::hardware {
namespace {

constexpr uint64_t kNoLimit = std::numeric_limits<uint64_t>::max();

struct Hierarchy {
  bool version2 = false;
  std::vector<std::string> directories;  // this process's group first, then its ancestors
};

bool HasItem(std::string_view list, std::string_view item) {
  while (!list.empty()) {
    const size_t comma = list.find(',');
    if (list.substr(0, comma) == item) return true;
    list.remove_prefix(comma == list.npos ? list.size() : comma + 1);
  }
  return false;
}

// This process's path within the hierarchy, from lines "4:memory:/a/b" or "0::/a/b".
std::optional<std::string> PathInHierarchy(const std::string& root, std::string_view controller,
                                           bool version2) {
  std::istringstream lines(ReadKernelFile(root + "/proc/self/cgroup").value_or(""));
  for (std::string line; std::getline(lines, line);) {
    const size_t first = line.find(':');
    const size_t second = first == line.npos ? first : line.find(':', first + 1);
    if (second == line.npos) continue;
    const std::string_view controllers =
        std::string_view(line).substr(first + 1, second - first - 1);
    if (version2 ? controllers.empty() : HasItem(controllers, controller)) {
      return line.substr(second + 1);
    }
  }
  return std::nullopt;
}

// The mounted hierarchy with `controller`: "36 29 0:33 <top> <mount point> rw ... - <type> x
// <options>".
std::optional<Hierarchy> FindHierarchy(const std::string& root, std::string_view controller,
                                       bool version2) {
  const std::optional<std::string> path = PathInHierarchy(root, controller, version2);
  if (!path) return std::nullopt;
  std::istringstream lines(ReadKernelFile(root + "/proc/self/mountinfo").value_or(""));
  for (std::string line; std::getline(lines, line);) {
    std::istringstream fields(line);
    std::string skip, top, mount_point, field, type, options;
    fields >> skip >> skip >> skip >> top >> mount_point;
    while (fields >> field && field != "-") {
    }
    fields >> type >> skip >> options;
    const bool found =
        version2 ? type == "cgroup2" : type == "cgroup" && HasItem(options, controller);
    if (!found) continue;
    // A container sees only the part below `top` mounted; with a namespace of its own, just "/".
    std::string below = *path;
    if (top != "/") below = below.starts_with(top) ? below.substr(top.size()) : "";
    if (below.find("..") != below.npos) below.clear();  // outside of what is mounted
    while (below.ends_with('/')) below.pop_back();
    Hierarchy hierarchy{.version2 = version2, .directories = {}};
    for (;;) {
      hierarchy.directories.push_back(root + mount_point + below);
      if (below.empty()) return hierarchy;
      below.resize(below.rfind('/') == below.npos ? 0 : below.rfind('/'));
    }
  }
  return std::nullopt;
}

// Both versions, since a machine may have a controller in either.
std::vector<Hierarchy> FindHierarchies(const std::string& root, std::string_view controller) {
  std::vector<Hierarchy> found;
  for (const bool version2 : {false, true}) {
    if (auto hierarchy = FindHierarchy(root, controller, version2)) {
      found.push_back(*std::move(hierarchy));
    }
  }
  return found;
}

// The file's number; "max", -1, absent or absurdly large all mean no limit.
uint64_t LimitIn(const std::string& path) {
  const std::string text = ReadKernelFile(path).value_or("");
  uint64_t value = 0;
  const auto [stop, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || value >= uint64_t{1} << 60) return kNoLimit;
  return value;
}

std::optional<double> QuotaIn(const std::string& directory, bool version2) {
  std::string quota_text, period_text;
  if (version2) {
    std::istringstream(ReadKernelFile(directory + "/cpu.max").value_or("")) >> quota_text >>
        period_text;
  } else {
    quota_text = ReadKernelFile(directory + "/cpu.cfs_quota_us").value_or("");
    period_text = ReadKernelFile(directory + "/cpu.cfs_period_us").value_or("");
  }
  int64_t quota = 0, period = 0;
  const auto parse = [](const std::string& text, int64_t& value) {
    return std::from_chars(text.data(), text.data() + text.size(), value).ec == std::errc();
  };
  if (!parse(quota_text, quota) || !parse(period_text, period)) return std::nullopt;
  if (quota <= 0 || period <= 0) return std::nullopt;
  return static_cast<double>(quota) / static_cast<double>(period);
}

std::optional<ControlGroupMemory> MemoryIn(const std::string& directory, bool version2) {
  const uint64_t limit_bytes =
      version2 ? std::min(LimitIn(directory + "/memory.max"), LimitIn(directory + "/memory.high"))
               : LimitIn(directory + "/memory.limit_in_bytes");
  if (limit_bytes == kNoLimit) return std::nullopt;
  const uint64_t usage_bytes =
      LimitIn(directory + (version2 ? "/memory.current" : "/memory.usage_in_bytes"));
  if (usage_bytes == kNoLimit) return std::nullopt;
  const std::string stat = ReadKernelFile(directory + "/memory.stat").value_or("");
  uint64_t reclaimable_bytes = 0;
  for (const char* key : {"inactive_file", "active_file", "slab_reclaimable"}) {
    const std::string full_key = (version2 ? "" : "total_") + std::string(key);
    reclaimable_bytes += NumberAfter(stat, full_key).value_or(0);
  }
  return ControlGroupMemory{.limit_bytes = limit_bytes,
                            .used_bytes = usage_bytes - std::min(usage_bytes, reclaimable_bytes),
                            .directory = directory};
}

}  // namespace

std::optional<double> ControlGroupCpuQuota(const std::string& root) {
  std::optional<double> tightest;
  for (const Hierarchy& hierarchy : FindHierarchies(root, "cpu")) {
    for (const std::string& directory : hierarchy.directories) {
      const std::optional<double> quota = QuotaIn(directory, hierarchy.version2);
      if (quota && (!tightest || *quota < *tightest)) tightest = quota;
    }
  }
  return tightest;
}

std::optional<ControlGroupMemory> TightestControlGroupMemory(const std::string& root) {
  std::optional<ControlGroupMemory> tightest;
  for (const Hierarchy& hierarchy : FindHierarchies(root, "memory")) {
    for (const std::string& directory : hierarchy.directories) {
      auto memory = MemoryIn(directory, hierarchy.version2);
      if (memory && (!tightest || memory->available_bytes() < tightest->available_bytes())) {
        tightest = std::move(memory);
      }
    }
  }
  return tightest;
}

}  // namespace convene::hardware
