// Calls of tools whose parameters are written as text between tags, as parts of JSON.
#pragma once

#include <string>
#include <string_view>

namespace convene::openai {

// The name between both, without space around it; where they are empty, all of `text`. "": there is
// none, or it is no name, because space or a tag is within.
std::string_view NameBetween(std::string_view text, std::string_view begin, std::string_view end);

// A parameter's value as JSON: a string, or, where it need not be one (`is_text` false), what it is
// as JSON. Templates write words as Python does: True, False, None.
std::string JsonOfParameter(std::string_view value, bool is_text);

}  // namespace convene::openai
