// Parser: the tokens of a template as a syntax tree, by the grammar of Jinja 3.1 with the tags that
// transformers adds (break, continue, generation). It does not place variables, which scopes.h
// does.
#pragma once

#include <string_view>

#include "base/result.h"
#include "jinja/syntax.h"

namespace convene::jinja {

// The error gives the line and names a tag or construct that is unknown or not supported.
Result<Template> ParseTemplate(std::string_view source);

}  // namespace convene::jinja
