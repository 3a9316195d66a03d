// Text of values as Python prints them: str() and repr(). JSON is json_text.h's.
#pragma once

#include <string>
#include <string_view>

#include "jinja/run.h"
#include "jinja/value.h"

namespace convene::jinja {

// Python's str(value). Fails for what Python prints as a memory address, such as a generator.
std::string Str(Run& run, const Value& value);
// The value itself where it is a string, else str(value) as one; keeps text marked safe.
Value ToString(Run& run, const Value& value);

// Python's repr(value), appended.
void AppendRepr(Run& run, const Value& value, std::string& out);
std::string Repr(Run& run, const Value& value);
std::string QuoteText(std::string_view text);

// The shortest decimal text that reads back as the same double: 1.0, 1e+16, inf.
std::string FloatText(double value);

}  // namespace convene::jinja
