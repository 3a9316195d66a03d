// Parses JSON that others wrote: bounded nesting, an Error instead of exceptions. What the values
// mean is up to the caller.
#pragma once

#include <nlohmann/json.hpp>
#include <string_view>

#include "base/result.h"

namespace convene {

// Deeper documents are refused: copying and printing a document recurse.
inline constexpr int kMaxJsonDepth = 64;

// The document in `text`. Errors: not JSON (with line and column), not UTF-8, a number out of
// range, arrays and objects nested deeper than kMaxJsonDepth. Of equal keys in an object the last
// one counts.
Result<nlohmann::json> ParseJson(std::string_view text);

// Objects with more keys are refused where their order is kept: finding a key takes a search.
inline constexpr int kMaxOrderedKeys = 1024;

// As above, the keys of an object in the order of the text; one that it has twice is an error.
Result<nlohmann::ordered_json> ParseOrderedJson(std::string_view text);

}  // namespace convene
