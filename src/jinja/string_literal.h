// The value of a string literal: Python's escapes, as Jinja applies them. Not JSON's, which differ.
#pragma once

#include <string>
#include <string_view>

#include "base/result.h"

namespace convene::jinja {

// `literal` is what stands between the quotes, in valid UTF-8.
Result<std::string> UnescapeStringLiteral(std::string_view literal);

}  // namespace convene::jinja
