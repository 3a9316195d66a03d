// What filters, tests, functions and methods make of their arguments once those are bound to
// parameters (Builtin::Call).
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "jinja/run.h"
#include "jinja/value.h"

namespace convene::jinja {

// None, with the failure set, where the value has another type.
std::optional<int64_t> ToInteger(Run& run, const Value& value);
const std::string* ToText(Run& run, const Value& value);

// Neither missing nor none.
bool IsGiven(const Value& argument);
Value NoneIfMissing(const Value& argument);

// An argument that is missing counts as `otherwise`; one that is no integer fails and counts as 0.
bool IsTrueOr(const Value& argument, bool otherwise);
int64_t IntegerOr(Run& run, const Value& argument, int64_t otherwise);

}  // namespace convene::jinja
