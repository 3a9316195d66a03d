// Python's str.format: '{} and {name:>8}'. The operator % is percent_format.h's.
#pragma once

#include "jinja/run.h"
#include "jinja/value.h"

namespace convene::jinja {

// Precondition: `format` is a string. Fields may have attributes, subscripts, a conversion (!r, !s)
// and a specification, which may itself hold fields.
Value BraceFormat(Run& run, const Value& format, const Arguments& arguments);

}  // namespace convene::jinja
