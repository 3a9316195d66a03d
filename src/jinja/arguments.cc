#include "jinja/arguments.h"

#include <fmt/format.h>

namespace convene::jinja {

std::optional<int64_t> ToInteger(Run& run, const Value& value) {
  if (value.IsInteger()) return value.Int();
  run.Fail(value.IsUndefined()
               ? value.AsUndefined().message
               : fmt::format("'{}' object cannot be interpreted as an integer", TypeName(value)));
  return std::nullopt;
}

const std::string* ToText(Run& run, const Value& value) {
  if (value.IsString()) return &value.Text();
  run.Fail(fmt::format("must be str, not {}", TypeName(value)));
  return nullptr;
}

bool IsGiven(const Value& argument) { return !argument.IsMissing() && !argument.IsNone(); }

Value NoneIfMissing(const Value& argument) {
  return argument.IsMissing() ? Value(None{}) : argument;
}

bool IsTrueOr(const Value& argument, bool otherwise) {
  return argument.IsMissing() ? otherwise : IsTrue(argument);
}

int64_t IntegerOr(Run& run, const Value& argument, int64_t otherwise) {
  return argument.IsMissing() ? otherwise : ToInteger(run, argument).value_or(0);
}

}  // namespace convene::jinja
