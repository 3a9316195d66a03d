#include "hardware/huge_pages.h"

#include <charconv>
#include <fstream>
#include <optional>
#include <string>
#include <utility>

#include "hardware/kernel_files.h"

namespace convene::hardware {
namespace {

// The addresses in which a line of smaps "7f12-7f34 rw-p ..." starts and ends a mapping; nothing on
// other lines.
std::optional<std::pair<uintptr_t, uintptr_t>> MappingOf(const std::string& line) {
  uintptr_t begin = 0;
  uintptr_t end = 0;
  const char* const last = line.data() + line.size();
  const auto [dash, error] = std::from_chars(line.data(), last, begin, 16);
  if (error != std::errc() || dash == last || *dash != '-') return std::nullopt;
  if (std::from_chars(dash + 1, last, end, 16).ec != std::errc()) return std::nullopt;
  return std::pair(begin, end);
}

}  // namespace

uint64_t HugePageBytes(std::span<const std::byte> memory) {
  const auto first = reinterpret_cast<uintptr_t>(memory.data());
  const uintptr_t last = first + memory.size();
  uint64_t huge_bytes = 0;
  bool is_ours = false;
  std::ifstream smaps("/proc/self/smaps");
  for (std::string line; std::getline(smaps, line);) {
    if (const auto mapping = MappingOf(line)) {
      is_ours = mapping->first < last && mapping->second > first;
    }
    if (!is_ours) continue;
    for (const char* key : {"AnonHugePages", "ShmemPmdMapped", "FilePmdMapped"}) {
      huge_bytes += NumberAfter(line, key).value_or(0) * 1024;
    }
  }
  return huge_bytes;
}

}  // namespace convene::hardware
