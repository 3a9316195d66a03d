// Calls of tools whose parameters are written as text between tags, as parts of JSON.
#pragma once

#include <bitset>
#include <cstdint>
#include <string>
#include <string_view>

namespace convene::openai {

enum class JsonType : uint8_t { kNull, kBoolean, kInteger, kNumber, kString, kArray, kObject };

// Those that a value may have; each number is a kNumber, too. All: nobody says.
using JsonTypes = std::bitset<7>;
inline JsonTypes Only(JsonType type) { return JsonTypes().set(static_cast<size_t>(type)); }
inline JsonTypes AnyType() { return ~JsonTypes(); }

// The name between both, without space around it; where they are empty, all of `text`. "": there is
// none, or it is no name, because space or a tag is within.
std::string_view NameBetween(std::string_view text, std::string_view begin, std::string_view end);

// A parameter's value as JSON: what it is as JSON, if that has one of the types, and otherwise a
// string if it may be one. What is no JSON is a string in any case, and so is JSON of a string
// where that is one of the types, not all: strings come without quotes. Templates write words as
// Python does: True, False, None.
std::string JsonOfParameter(std::string_view value, JsonTypes types);

}  // namespace convene::openai
