#include "jinja/arguments.h"

#include <fmt/format.h>

#include <algorithm>

namespace convene::jinja {

bool Bind(Run& run, std::string_view callee, const Arguments& arguments,
          std::initializer_list<std::string_view> names, size_t num_required, Value* out) {
  if (run.failed()) return false;
  if (arguments.positional.size() > names.size()) {
    run.Fail(fmt::format("{}() takes at most {} argument{} ({} given)", callee, names.size(),
                         names.size() == 1 ? "" : "s", arguments.positional.size()));
    return false;
  }
  std::copy(arguments.positional.begin(), arguments.positional.end(), out);
  for (const auto& [name, value] : arguments.named) {
    const auto* found = std::find(names.begin(), names.end(), name);
    if (found == names.end() || name.empty()) {
      run.Fail(fmt::format("{}() got an unexpected keyword argument '{}'", callee, name));
      return false;
    }
    Value& place = out[found - names.begin()];
    if (!place.IsMissing()) {
      run.Fail(fmt::format("{}() got multiple values for argument '{}'", callee, name));
      return false;
    }
    place = value;
  }
  for (size_t i = 0; i < num_required; ++i) {
    if (!out[i].IsMissing()) continue;
    run.Fail(fmt::format("{}() is missing its argument {} {}", callee, i + 1, names.begin()[i]));
    return false;
  }
  return true;
}

bool BindNothing(Run& run, std::string_view callee, const Arguments& arguments) {
  return Bind(run, callee, arguments, {}, 0, nullptr);
}

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

bool IsTrueOr(const Value& argument, bool otherwise) {
  return argument.IsMissing() ? otherwise : IsTrue(argument);
}

}  // namespace convene::jinja
