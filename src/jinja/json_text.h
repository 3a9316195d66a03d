// JSON and values: the conversation on its way in, the filter tojson on its way out.
// The text is that of Python's json.dumps, which is not nlohmann's.
#pragma once

#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>

#include "jinja/run.h"
#include "jinja/value.h"

namespace convene::jinja {

// Fails for text that is not UTF-8, integers beyond 64 bits with sign, and deep nesting.
Value FromJson(Run& run, const nlohmann::ordered_json& json);

// The same from JSON text. A failure for text that is not JSON.
Value ParseJsonText(Run& run, std::string_view text);

struct JsonStyle {
  bool ensure_ascii = false;
  std::optional<std::string> indent;  // of one level; none: all on one line
  std::string item_separator = ", ";
  std::string key_separator = ": ";
  bool sort_keys = false;
};

// Fails for values that JSON does not have, such as undefined ones.
std::string ToJson(Run& run, const Value& value, const JsonStyle& style);

}  // namespace convene::jinja
