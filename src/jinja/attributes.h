// Looking things up by name: object.name and object[key], as Jinja's sandbox resolves them (an
// attribute of the Python object or an entry of the dict, whichever the notation prefers).
#pragma once

#include <string_view>

#include "jinja/run.h"
#include "jinja/value.h"

namespace convene::jinja {

// object.name: methods come first, then entries. Undefined where there is neither.
Value GetAttribute(Run& run, const Value& object, std::string_view name);

// object[key]: entries come first, then methods.
Value GetItem(Run& run, const Value& object, const Value& key);

// The attribute alone, as the filter attr has it. Missing where there is none.
Value OwnAttribute(Run& run, const Value& object, std::string_view name);

// An undefined value that says what was looked up.
Value UndefinedAttribute(Run& run, const Value& object, std::string_view name);

}  // namespace convene::jinja
