#include "jinja/number_text.h"

#include <fmt/format.h>

#include <charconv>
#include <cstdlib>
#include <limits>
#include <string>

#include "jinja/python_text.h"

namespace convene::jinja {
namespace {

// Without the underscores, each of which must stand between two digits.
std::optional<std::string> WithoutUnderscores(std::string_view text) {
  std::string out;
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] != '_') {
      out += text[i];
      continue;
    }
    const auto is_digit = [&](size_t at) {
      return at < text.size() && std::isalnum(static_cast<unsigned char>(text[at])) != 0;
    };
    if (i == 0 || !is_digit(i - 1) || !is_digit(i + 1)) return std::nullopt;
  }
  return out;
}

// Takes a sign off; true for a minus.
bool TakeSign(std::string_view* text) {
  const bool is_negative = text->starts_with('-');
  if (is_negative || text->starts_with('+')) text->remove_prefix(1);
  return is_negative;
}

}  // namespace

std::optional<int64_t> ParseInteger(Run& run, std::string_view text, int64_t base) {
  if (base != 0 && (base < 2 || base > 36)) return std::nullopt;
  text = StripRight(StripLeft(text));
  const bool is_negative = TakeSign(&text);
  int64_t actual_base = base;
  if (text.size() > 2 && text[0] == '0') {
    const char letter = static_cast<char>(text[1] | 0x20);
    const int64_t prefixed = letter == 'x' ? 16 : letter == 'o' ? 8 : letter == 'b' ? 2 : 0;
    if (prefixed != 0 && (base == 0 || base == prefixed)) {
      actual_base = prefixed;
      text.remove_prefix(2);
      if (text.starts_with('_')) text.remove_prefix(1);
    }
  }
  if (actual_base == 0) actual_base = 10;
  const auto digits = WithoutUnderscores(text);
  if (!digits || digits->empty()) return std::nullopt;
  uint64_t magnitude = 0;
  const char* end = digits->data() + digits->size();
  const auto parsed =
      std::from_chars(digits->data(), end, magnitude, static_cast<int>(actual_base));
  if (parsed.ptr != end || parsed.ec == std::errc::invalid_argument) return std::nullopt;
  const uint64_t limit = uint64_t{std::numeric_limits<int64_t>::max()} + (is_negative ? 1 : 0);
  if (parsed.ec != std::errc() || magnitude > limit) {
    run.Fail(fmt::format("the integer {} exceeds 64 bits, which is not supported", text));
    return std::nullopt;
  }
  return static_cast<int64_t>(is_negative ? uint64_t{0} - magnitude : magnitude);
}

std::optional<double> ParseFloat(std::string_view text) {
  text = StripRight(StripLeft(text));
  const bool is_negative = TakeSign(&text);
  const auto digits = WithoutUnderscores(text);
  if (!digits || digits->empty()) return std::nullopt;
  const std::string lower = ToLower(*digits);
  if (lower == "inf" || lower == "infinity") {
    const double infinity = std::numeric_limits<double>::infinity();
    return is_negative ? -infinity : infinity;
  }
  if (lower == "nan") return std::numeric_limits<double>::quiet_NaN();
  if (lower.find_first_not_of("0123456789.e+-") != std::string::npos || lower[0] == '+' ||
      lower[0] == '-') {
    return std::nullopt;
  }
  double value = 0;
  const char* end = lower.data() + lower.size();
  const auto parsed = std::from_chars(lower.data(), end, value);
  if (parsed.ptr != end) return std::nullopt;
  if (parsed.ec == std::errc::result_out_of_range) value = std::strtod(lower.c_str(), nullptr);
  if (parsed.ec == std::errc::invalid_argument) return std::nullopt;
  return is_negative ? -value : value;
}

}  // namespace convene::jinja
