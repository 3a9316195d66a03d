// Checks of options that complain as our own parsers do. What they set is value_options.h.
#pragma once

#include <CLI/CLI.hpp>
#include <string>
#include <string_view>

#include "base/result.h"
#include "cli/value_options.h"

namespace convene::cli {

// A check that complains as `parse` (text to a Result) does.
template <typename Parse>
CLI::Validator ParsedBy(Parse parse) {
  return CLI::Validator(
      [parse](const std::string& text) {
        const auto parsed = parse(text);
        return parsed ? std::string() : parsed.error().message;
      },
      "");
}

// Likewise of a list with commas, whose parts `parse` gets.
template <typename Parse>
CLI::Validator ListParsedBy(Parse parse) {
  return ParsedBy([parse](std::string_view text) -> Status {
    const auto parts = ParseList(text);
    if (!parts) return parts.error();
    const auto parsed = parse(*parts);
    return parsed ? Status() : Status(parsed.error());
  });
}

}  // namespace convene::cli
