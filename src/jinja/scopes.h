// Placing variables: which slot of which macro each name of a template means, decided before it
// runs. Jinja decides this from the source alone, with rules unlike those of scopes that are
// searched at run time (a name set later in a block is unset, not inherited, before that). This
// follows jinja2/idtracking.py and the frames of jinja2/compiler.py.
#pragma once

#include "base/result.h"
#include "jinja/syntax.h"

namespace convene::jinja {

// Fills in every place, slot and scope. The error names a filter or test that does not exist (one
// within a condition is left for the rendering, as in Jinja), or a forbidden assignment.
Status PlaceVariables(Template& source);

}  // namespace convene::jinja
