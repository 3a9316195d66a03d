// Replacing parts of a text, for the filter and the method of that name.
// It is not a regular expression: chat templates have none.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "jinja/run.h"

namespace convene::jinja {

// Python's text.replace(old_part, new_part, max_count); a negative count means all. An empty old
// part stands between all characters.
std::string ReplaceText(Run& run, std::string_view text, std::string_view old_part,
                        std::string_view new_part, int64_t max_count);

}  // namespace convene::jinja
