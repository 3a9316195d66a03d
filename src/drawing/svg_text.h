// Text as SVG has it.
#pragma once

#include <string>
#include <string_view>

namespace convene::drawing {

// With what would begin a tag or an entity written out; control characters become spaces.
std::string Escaped(std::string_view text);

}  // namespace convene::drawing
