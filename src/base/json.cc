#include "base/json.h"

#include <algorithm>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "base/quote.h"

namespace convene {
namespace {

// The deepest nesting of brackets outside strings; of malformed text some number, which is enough:
// the parser never holds more levels open than this.
int NestingDepth(std::string_view text) {
  int depth = 0;
  int deepest = 0;
  bool in_string = false;
  for (size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (in_string) {
      if (c == '\\') {
        ++i;
      } else if (c == '"') {
        in_string = false;
      }
    } else if (c == '"') {
      in_string = true;
    } else if (c == '[' || c == '{') {
      deepest = std::max(deepest, ++depth);
    } else if (c == ']' || c == '}') {
      --depth;
    }
  }
  return deepest;
}

// The library's message without its error number, one line of printable ASCII.
std::string Readable(std::string_view what) {
  if (const size_t end = what.find("] "); what.starts_with('[') && end != std::string_view::npos) {
    what.remove_prefix(end + 2);
  }
  constexpr size_t kMaxLength = 200;
  std::string message(what.substr(0, kMaxLength));
  std::replace_if(
      message.begin(), message.end(), [](char c) { return c < 0x20 || c > 0x7e; }, '?');
  return message;
}

// The most keys that an object in `value` has. Recurses as deep as a parsed document nests.
size_t MostKeys(const nlohmann::json& value) {
  size_t most = value.is_object() ? value.size() : 0;
  if (!value.is_structured()) return most;
  for (const nlohmann::json& element : value) most = std::max(most, MostKeys(element));
  return most;
}

}  // namespace

Result<nlohmann::json> ParseJson(std::string_view text) {
  if (const int depth = NestingDepth(text); depth > kMaxJsonDepth) {
    return Error{fmt::format("arrays and objects are nested {} deep; at most {} levels are read",
                             depth, kMaxJsonDepth)};
  }
  // The library takes one for the end, whatever comes after it.
  if (const size_t at = text.find('\0'); at != std::string_view::npos) {
    return Error{fmt::format("byte {} is a zero, which JSON does not have", at)};
  }
  try {
    return nlohmann::json::parse(text);
  } catch (const nlohmann::json::exception& exception) {
    return Error{Readable(exception.what())};
  }
}

Result<nlohmann::ordered_json> ParseOrderedJson(std::string_view text) {
  using Event = nlohmann::ordered_json::parse_event_t;
  const Result<nlohmann::json> sorted = ParseJson(text);
  if (!sorted) return sorted.error();
  if (const size_t most = MostKeys(*sorted); most > kMaxOrderedKeys) {
    return Error{fmt::format("an object has {} keys; at most {} are read", most, kMaxOrderedKeys)};
  }
  std::vector<std::set<std::string>> keys;  // of the objects that are open
  std::optional<std::string> repeated;
  const auto see = [&](int, Event event, nlohmann::ordered_json& parsed) {
    if (event == Event::object_start) keys.emplace_back();
    if (event == Event::object_end) keys.pop_back();
    if (event == Event::key && !keys.back().insert(parsed.get<std::string>()).second) {
      repeated = parsed.get<std::string>();
    }
    return true;
  };
  auto ordered = nlohmann::ordered_json::parse(text, see);  // as valid as before
  if (repeated) return Error{fmt::format("an object has the key {} twice", Quote(*repeated))};
  return ordered;
}

}  // namespace convene
