#include "jinja/format_spec.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdio>

#include "base/utf8.h"
#include "jinja/python_text.h"
#include "jinja/repr.h"

namespace convene::jinja {
namespace {

// Digits with a separator between every `group` of them, from the right.
std::string Group(std::string_view digits, char separator, size_t group) {
  std::string out;
  for (size_t i = 0; i < digits.size(); ++i) {
    if (i > 0 && (digits.size() - i) % group == 0) out += separator;
    out += digits[i];
  }
  return out;
}

std::string SignOf(bool is_negative, char sign) {
  return is_negative ? "-" : sign == '-' ? "" : std::string(1, sign);
}

// Sign and prefix stay in front of zeros that pad.
std::string PadNumber(Run& run, const std::string& prefix, const std::string& digits,
                      const FormatSpec& spec) {
  if (spec.align != '=') return Pad(run, prefix + digits, spec, '>');
  if (spec.grouping != '\0' && spec.fill == '0') {
    run.Fail("a format with both zero padding and grouping is not supported");
    return "";
  }
  FormatSpec rest = spec;
  rest.align = '>';
  rest.width -= static_cast<int64_t>(prefix.size());
  return prefix + Pad(run, digits, rest, '>');
}

bool IsOneOf(char c, std::string_view set) { return set.find(c) != std::string_view::npos; }

}  // namespace

std::optional<FormatSpec> ParseFormatSpec(Run& run, std::string_view text) {
  FormatSpec spec;
  size_t pos = 0;
  const auto at = [&](std::string_view set) {
    return pos < text.size() && IsOneOf(text[pos], set);
  };
  const auto read_number = [&]() {
    int64_t number = 0;
    for (; at("0123456789"); ++pos)
      number = std::min<int64_t>(number * 10 + (text[pos] - '0'), 1LL << 40);
    return number;
  };
  if (!text.empty()) {
    size_t behind_fill = 0;
    const char32_t fill = ReadCodePoint(text, &behind_fill);
    if (behind_fill < text.size() && IsOneOf(text[behind_fill], "<>^=")) {
      spec.fill = fill;
      spec.align = text[behind_fill];
      pos = behind_fill + 1;
    } else if (at("<>^=")) {
      spec.align = text[pos++];
    }
  }
  if (at("+- ")) spec.sign = text[pos++];
  if (at("#")) spec.alternate = text[pos++] == '#';
  if (at("0")) {
    ++pos;
    if (spec.align == '\0') {
      spec.fill = '0';
      spec.align = '=';
    }
  }
  spec.width = read_number();
  if (at(",_")) spec.grouping = text[pos++];
  if (at(".")) {
    ++pos;
    if (!at("0123456789")) {
      run.Fail("Format specifier missing precision");
      return std::nullopt;
    }
    spec.precision = read_number();
  }
  if (pos < text.size()) spec.type = text[pos++];
  if (pos < text.size()) {
    run.Fail(fmt::format("Invalid format specifier '{}'", text));
    return std::nullopt;
  }
  return spec;
}

std::string Pad(Run& run, std::string_view text, const FormatSpec& spec, char otherwise) {
  const auto length = static_cast<int64_t>(Length(text));
  if (spec.width <= length) return std::string(text);
  const auto missing = static_cast<size_t>(spec.width - length);
  if (!run.MayAllocate(missing * 4) || !run.SpendText(missing)) return "";
  const char align = spec.align == '\0' ? otherwise : spec.align;
  const size_t left = align == '<' ? 0 : align == '^' ? missing / 2 : missing;
  std::string out;
  for (size_t i = 0; i < left; ++i) AppendUtf8(spec.fill, &out);
  out += text;
  for (size_t i = left; i < missing; ++i) AppendUtf8(spec.fill, &out);
  return out;
}

std::string FormatInteger(Run& run, int64_t value, const FormatSpec& spec) {
  const bool is_negative = value < 0;
  const uint64_t magnitude =
      is_negative ? uint64_t{0} - static_cast<uint64_t>(value) : static_cast<uint64_t>(value);
  const bool has_base = IsOneOf(spec.type, "xXob");
  const std::string format = has_base ? std::string{'{', ':', spec.type, '}'} : "{}";
  std::string digits = fmt::vformat(format, fmt::make_format_args(magnitude));
  const std::string prefix = has_base && spec.alternate ? std::string{'0', spec.type} : "";
  if (spec.grouping != '\0') {
    digits = Group(digits, spec.grouping, has_base ? 4 : 3);
  }
  return PadNumber(run, SignOf(is_negative, spec.sign) + prefix, digits, spec);
}

std::string FormatFloat(Run& run, double value, const FormatSpec& spec) {
  constexpr int64_t kMaxPrecision = 1000;
  if (spec.precision > kMaxPrecision) {
    run.Fail(fmt::format("a precision of {} is not supported, the limit is {}", spec.precision,
                         kMaxPrecision));
    return "";
  }
  const bool is_negative = std::signbit(value) && !std::isnan(value);
  const bool is_percent = spec.type == '%';
  const double magnitude = std::fabs(is_percent ? value * 100 : value);
  const char type = is_percent ? 'f' : spec.type;
  std::string digits;
  if (!std::isfinite(magnitude)) {
    digits = std::isnan(magnitude) ? "nan" : "inf";
    if (IsOneOf(type, "EFG")) digits = std::isnan(magnitude) ? "NAN" : "INF";
  } else {
    const char format[] = {'%',
                           spec.alternate ? '#' : '.',
                           spec.alternate ? '.' : '*',
                           spec.alternate ? '*' : type,
                           spec.alternate ? type : '\0',
                           '\0'};
    const int precision = spec.precision < 0 ? 6 : static_cast<int>(spec.precision);
    char buffer[1400];  // 309 digits and the precision
    std::snprintf(buffer, sizeof(buffer), format, precision, magnitude);
    digits = buffer;
    if (spec.grouping != '\0') {
      const size_t end = std::min(digits.find_first_not_of("0123456789"), digits.size());
      digits = Group(digits.substr(0, end), spec.grouping, 3) + digits.substr(end);
    }
  }
  if (is_percent) digits += '%';
  return PadNumber(run, SignOf(is_negative, spec.sign), digits, spec);
}

std::string FormatValue(Run& run, const Value& value, const FormatSpec& spec) {
  const auto fail_type = [&]() {
    run.Fail(fmt::format("Unknown format code '{}' for object of type '{}'", spec.type,
                         TypeName(value)));
    return std::string();
  };
  if (value.IsString()) {
    if (spec.type != '\0' && spec.type != 's') return fail_type();
    if (spec.align == '=' || spec.sign != '-' || spec.alternate || spec.grouping != '\0') {
      run.Fail("Sign, '=', '#' and grouping are not allowed in string format specifier");
      return "";
    }
    std::string_view text = value.Text();
    if (spec.precision >= 0) {
      text = text.substr(0, ByteOffset(text, static_cast<size_t>(spec.precision)));
    }
    return Pad(run, text, spec, '<');
  }
  if (!value.IsNumber()) {
    run.Fail(fmt::format("unsupported format string passed to {}.__format__", TypeName(value)));
    return "";
  }
  if (spec.type != '\0' && IsOneOf(spec.type, "eEfFgG%")) {
    return FormatFloat(run, value.Float(), spec);
  }
  if (value.IsInteger()) {
    if (spec.precision >= 0) {
      run.Fail("Precision not allowed in integer format specifier");
      return "";
    }
    if (spec.type != '\0' && !IsOneOf(spec.type, "dbxXo")) return fail_type();
    return FormatInteger(run, value.Int(), spec);
  }
  if (spec.type != '\0') return fail_type();
  if (spec.precision >= 0 || spec.grouping != '\0') {
    run.Fail("a float's format without a type is supported only without precision and grouping");
    return "";
  }
  const std::string text = FloatText(std::fabs(value.Float()));
  const bool is_negative = std::signbit(value.Float()) && !std::isnan(value.Float());
  return PadNumber(run, SignOf(is_negative, spec.sign), text, spec);
}

}  // namespace convene::jinja
