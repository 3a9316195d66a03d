// Format specifications: what stands behind the colon of '{:>10.2f}'. Both kinds of formatting,
// % and str.format, print numbers and pad through it.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "jinja/run.h"
#include "jinja/value.h"

namespace convene::jinja {

struct FormatSpec {
  char32_t fill = ' ';
  char align = '\0';  // one of < > ^ =, or as the type has it
  char sign = '-';    // one of - + space
  bool alternate = false;
  int64_t width = 0;
  char grouping = '\0';    // ',' or '_'
  int64_t precision = -1;  // not given
  char type = '\0';
};

// Reads Python's [[fill]align][sign][#][0][width][grouping][.precision][type].
std::optional<FormatSpec> ParseFormatSpec(Run& run, std::string_view text);

// format(value, spec) for a string or a number; fails for other types and impossible combinations.
std::string FormatValue(Run& run, const Value& value, const FormatSpec& spec);

// Also for numbers that are not values yet. Type: one of d b o x X and e E f F g G %.
std::string FormatInteger(Run& run, int64_t value, const FormatSpec& spec);
std::string FormatFloat(Run& run, double value, const FormatSpec& spec);

// Fills up to the width; `otherwise` is the alignment where the specification has none.
std::string Pad(Run& run, std::string_view text, const FormatSpec& spec, char otherwise);

}  // namespace convene::jinja
