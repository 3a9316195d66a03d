#include "base/units.h"

#include <fmt/format.h>

#include <cctype>
#include <charconv>
#include <system_error>
#include <utility>

#include "base/quote.h"

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

Result<uint64_t> ParseBytes(std::string_view text) {
  const Error none{fmt::format(
      "{} is no amount of memory; write a number and its unit, such as 6GiB, 2.94GB or 512MiB",
      Quote(text))};
  double value = 0;
  const auto [rest, error] =
      std::from_chars(text.data(), text.data() + text.size(), value, std::chars_format::fixed);
  if (error != std::errc() || !(value > 0)) return none;
  std::string unit(rest, text.data() + text.size());
  if (unit.starts_with(' ')) unit.erase(0, 1);
  for (char& letter : unit) letter = static_cast<char>(std::tolower(letter));
  static constexpr std::pair<std::string_view, double> kUnits[] = {
      {"b", 1},    {"kib", 0x1p10}, {"mib", 0x1p20}, {"gib", 0x1p30}, {"tib", 0x1p40},
      {"kb", 1e3}, {"mb", 1e6},     {"gb", 1e9},     {"tb", 1e12}};
  for (const auto& [name, bytes] : kUnits) {
    if (unit != name) continue;
    const double size_bytes = value * bytes;
    if (!(size_bytes >= 1)) return none;
    if (size_bytes >= 0x1p63) {
      return Error{fmt::format("{} is more memory than a program can have", Quote(text))};
    }
    return static_cast<uint64_t>(size_bytes);
  }
  return none;
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

std::string FormatPercent(double share) { return fmt::format("{:.1f} %", 100 * share); }

}  // namespace convene
