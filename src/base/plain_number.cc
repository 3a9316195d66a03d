#include "base/plain_number.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdint>

#include "base/units.h"

namespace convene {

std::string PlainNumber(double value, int digits) {
  constexpr double kMostWhole = 1e18;  // that 64 bits count
  constexpr int kMostDecimals = 15;
  if (value < 0) return "-" + PlainNumber(-value, digits);
  if (value == 0) return "0";
  if (!(value < kMostWhole)) return fmt::format("{:.0f}", value);
  // Rounding may carry: 9.9996 has four digits before the point of its power of ten.
  const double power = std::pow(10, std::floor(std::log10(value)) - digits + 1);
  const double rounded = std::round(value / power) * power;
  if (rounded >= 1000) return FormatCount(static_cast<uint64_t>(std::llround(rounded)));
  const int decimals = static_cast<int>(digits - 1 - std::floor(std::log10(value)));
  std::string text = fmt::format("{:.{}f}", rounded, std::clamp(decimals, 0, kMostDecimals));
  if (text.find('.') == std::string::npos) return text;
  text.erase(text.find_last_not_of('0') + 1);
  if (text.back() == '.') text.pop_back();
  return text;
}

}  // namespace convene
