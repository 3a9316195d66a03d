// How values compare: Python's ==, < and the keys of a dict. Not the tests of `is`, which use it.
#pragma once

#include "jinja/run.h"
#include "jinja/value.h"

namespace convene::jinja {

bool Equal(Run& run, const Value& a, const Value& b);

// Fails for values that Python cannot order, such as 1 < 'a'.
bool Less(Run& run, const Value& a, const Value& b);

// -1, 0 or 1; 2 where one of the two numbers is NaN. Exact also between int and float.
int CompareNumbers(const Value& a, const Value& b);

// Whether Python could use the value as a key of a dict; a failure where not.
bool CheckHashable(Run& run, const Value& value);

// A total order of the hashable values in which exactly equal ones are equivalent (NaN counts as
// equal to NaN). Strings are contiguous; only tuples come after them.
bool KeyLess(Run& run, const Value& a, const Value& b);

}  // namespace convene::jinja
