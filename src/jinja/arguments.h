// Arguments of filters, tests, functions and methods, bound to parameters as Python does.
// Macros, whose rules are Jinja's, bind theirs in the interpreter.
#pragma once

#include <initializer_list>
#include <optional>
#include <string>
#include <string_view>

#include "jinja/run.h"
#include "jinja/value.h"

namespace convene::jinja {

// Sets out[i] to the argument for names[i], or leaves it missing. A name "" takes no keyword.
// False, with the failure set, for arguments too many, unknown, repeated, or missing among the
// first `num_required`.
bool Bind(Run& run, std::string_view callee, const Arguments& arguments,
          std::initializer_list<std::string_view> names, size_t num_required, Value* out);

bool BindNothing(Run& run, std::string_view callee, const Arguments& arguments);

// None, with the failure set, where the value has another type.
std::optional<int64_t> ToInteger(Run& run, const Value& value);
const std::string* ToText(Run& run, const Value& value);

// An argument that is missing counts as `otherwise`.
bool IsTrueOr(const Value& argument, bool otherwise);

}  // namespace convene::jinja
