// Reading numbers from text as Python's int() and float() do: spaces around, underscores between
// digits, a sign. It does not read the numbers of a template's source, which are the lexer's.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

#include "jinja/run.h"

namespace convene::jinja {

// None where int(text, base) raises ValueError; a failure (and none) beyond 64 bits.
std::optional<int64_t> ParseInteger(Run& run, std::string_view text, int64_t base);

// None where float(text) raises ValueError.
std::optional<double> ParseFloat(std::string_view text);

}  // namespace convene::jinja
