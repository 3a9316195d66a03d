// Python's str.format: '{} and {name:>8}'. The operator % is percent_format.h's.
#pragma once

#include "text/jinja/run.h"
#include "text/jinja/value.h"

namespace convene::text::jinja {

// Precondition: `format` is a string. Fields may have attributes, subscripts, a conversion (!r, !s)
// and a specification, which may itself hold fields.
Value BraceFormat(Run& run, const Value& format, const Arguments& arguments);

}  // namespace convene::text::jinja
