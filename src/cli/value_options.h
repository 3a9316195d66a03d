// Declares options whose values are numbers, lists of numbers and words, or paths, and refuses what
// is none. CLI11's own conversions take "", "true", "010" as eight, "nan", and negative numbers as
// huge ones, and its lists leave empty parts out.
#pragma once

#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "cli/cli11_fwd.h"

namespace convene::cli {

// Inclusive bounds.
template <typename T>
struct Bounds {
  T min;
  T max;
};

template <typename Value>
struct NumberIn {
  using Type = Value;
};
template <typename Number>
struct NumberIn<std::optional<Number>> {
  using Type = Number;
};
// The number in a number or in an optional of one.
template <typename Value>
using NumberOf = typename NumberIn<Value>::Type;

inline constexpr Bounds<int> kPositive = {1, std::numeric_limits<int>::max()};
inline constexpr Bounds<uint64_t> kAnySeed = {0, std::numeric_limits<uint64_t>::max()};

// The number that the whole of `text` spells, in decimal. Error: it spells none, or one out of
// bounds. T is int, uint64_t or double.
template <typename T>
Result<T> ParseNumber(std::string_view text, Bounds<T> bounds);

// The parts of "a,b,c". Errors: an empty part, the same part twice.
Result<std::vector<std::string>> ParseList(std::string_view text);

// Declare an option `names` ("-n,--max-tokens") that sets `value`, which must outlive the parser.
// `value` is an int, uint64_t or double, or an optional of one.
template <typename Value>
CLI::Option* AddNumber(CLI::App& app, const std::string& names, Value& value,
                       Bounds<NumberOf<Value>> bounds, const std::string& description = "");

// "1,8,32": each within the bounds, none twice.
CLI::Option* AddNumbers(CLI::App& app, const std::string& names, std::vector<int>& values,
                        Bounds<int> bounds, const std::string& description);

// "int8,int4": none empty, none twice.
CLI::Option* AddWords(CLI::App& app, const std::string& names, std::vector<std::string>& words,
                      const std::string& description);

// Any text, also an empty one, which CLI11 would take for an absent optional.
CLI::Option* AddText(CLI::App& app, const std::string& names, std::optional<std::string>& text,
                     const std::string& description = "");

// The path of a file or directory; not empty, which would be taken for an absent one. One without
// dashes is an argument, and required.
CLI::Option* AddPath(CLI::App& app, const std::string& names, std::string& path,
                     const std::string& description = "");

}  // namespace convene::cli
