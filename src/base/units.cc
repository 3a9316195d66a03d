#include "base/units.h"

#include <fmt/format.h>

namespace convene {

std::string FormatBytes(uint64_t size_bytes) {
  static constexpr const char* kUnits[] = {"KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};
  if (size_bytes < 1024) return fmt::format("{} B", size_bytes);
  double value = static_cast<double>(size_bytes) / 1024;
  int unit = 0;
  while (value >= 999.5 && unit < 5) {
    value /= 1024;
    ++unit;
  }
  const int decimals = value < 9.995 ? 2 : value < 99.95 ? 1 : 0;
  return fmt::format("{:.{}f} {}", value, decimals, kUnits[unit]);
}

std::string FormatCount(uint64_t count) {
  std::string digits = fmt::format("{}", count);
  for (int at = static_cast<int>(digits.size()) - 3; at > 0; at -= 3) {
    digits.insert(static_cast<size_t>(at), ",");
  }
  return digits;
}

std::string FormatCount(uint64_t count, std::string_view noun) {
  return fmt::format("{} {}{}", FormatCount(count), noun, count == 1 ? "" : "s");
}

}  // namespace convene
