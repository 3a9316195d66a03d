// Text marked safe (Python's Markup, from the filter `safe`) and what it does to text it meets: the
// other text is escaped as HTML, even though chat templates have nothing to do with HTML.
#pragma once

#include <string>
#include <string_view>

#include "jinja/run.h"
#include "jinja/value.h"

namespace convene::jinja {

std::string EscapeHtml(std::string_view text);

// markupsafe.escape(value): safe text as it is, anything else as escaped text that is safe.
Value Escape(Run& run, const Value& value);

// Joins texts; if one of the two is safe, the other is escaped and the result is safe.
// Precondition: both are strings.
Value JoinTexts(Run& run, const Value& a, const Value& b);

}  // namespace convene::jinja
