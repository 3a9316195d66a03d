// The tests of Jinja: what stands behind `is`, as in `message.content is string`.
#pragma once

#include <string>
#include <string_view>

#include "jinja/run.h"
#include "jinja/value.h"

namespace convene::jinja {

struct TestEntry {
  std::string_view name;
  bool (*call)(Run& run, const Value& input, const Arguments& arguments);
};

// Null where there is no such test.
const TestEntry* FindTest(std::string_view name);
std::string DescribeMissingTest(std::string_view name);

}  // namespace convene::jinja
