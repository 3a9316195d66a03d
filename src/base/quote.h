// Outside text inside messages: quoted, cut and harmless to a terminal. Not an encoding to read
// back.
#pragma once

#include <string>
#include <string_view>

namespace convene {

// `text` with '?' for each control character that `allowed` does not hold and for what is not
// UTF-8.
std::string Printable(std::string_view text, std::string_view allowed = "");

// "text" in double quotes; control characters and invalid UTF-8 become '?', and what is longer than
// about 100 bytes is cut with "...".
std::string Quote(std::string_view text);

}  // namespace convene
