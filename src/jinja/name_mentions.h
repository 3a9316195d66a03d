// Whether a block mentions special names (loop, caller, kwargs, varargs), so that they need a
// value. It does not know scopes: like Jinja, it reads to the first mention or assignment of each
// name.
#pragma once

#include <set>
#include <string>

#include "jinja/syntax.h"

namespace convene::jinja {

// Those of `names` that the block reads before it assigns to them, in the order of the source.
std::set<std::string> MentionedNames(const Block& block, std::set<std::string> names);

}  // namespace convene::jinja
