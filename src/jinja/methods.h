// Methods of strings, lists, dicts and the helper objects: message.get('x'), text.split(','), ...
// Which attribute a template may see is decided in attributes.h.
#pragma once

#include <span>
#include <string_view>

#include "jinja/run.h"
#include "jinja/value.h"

namespace convene::jinja {

struct MethodEntry {
  std::string_view name;
  // Null: Python has the method, but it is not supported; a call fails and says so.
  Value (*call)(Run& run, const Value& self, const Arguments& arguments);
  // The sandbox refuses methods that would change a list or dict.
  bool changes_self = false;
};

// The method of the value's type, or null where Python has none of that name.
const MethodEntry* FindMethod(const Value& self, std::string_view name);

// The tables of string_methods.cc and string_queries.cc.
std::span<const MethodEntry> StringMethods();
std::span<const MethodEntry> StringQueries();  // isdigit, startswith, find, ...
}  // namespace convene::jinja
