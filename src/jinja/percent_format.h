// The operator % on text: '%s and %d' % (a, b). Python's str.format is brace_format.h's.
#pragma once

#include "jinja/run.h"
#include "jinja/value.h"

namespace convene::jinja {

// `arguments` are a tuple, a dict for '%(name)s', or the only argument. Precondition: `format` is a
// string. Where it is marked safe, arguments are escaped and so is the result.
Value PercentFormat(Run& run, const Value& format, const Value& arguments);

}  // namespace convene::jinja
