// The global functions of a template: range, namespace, raise_exception and the others that Jinja
// and transformers define. Filters and tests have tables of their own.
#pragma once

#include <string_view>

#include "jinja/run.h"
#include "jinja/value.h"

namespace convene::jinja {

struct FunctionEntry {
  std::string_view name;
  Value (*call)(Run& run, const Arguments& arguments);
};

// Null where there is no such function.
const FunctionEntry* FindFunction(std::string_view name);

}  // namespace convene::jinja
