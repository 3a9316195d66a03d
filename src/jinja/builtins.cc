#include "jinja/builtins.h"

#include <fmt/format.h>

#include <algorithm>

namespace convene::jinja {
namespace {

constexpr std::string_view kUnsupportedFilters[] = {"filesizeformat", "pprint",    "random",
                                                    "striptags",      "urlencode", "urlize",
                                                    "wordwrap",       "xmlattr"};

}  // namespace

bool Builtin::Bind(Run& run, const Arguments& arguments, Bound& bound) const {
  const std::span parameters(parameters_.data(), num_parameters_);
  if (arguments.positional.size() > parameters.size()) {
    run.Fail(fmt::format("{}() takes at most {} argument{} ({} given)", name_, parameters.size(),
                         parameters.size() == 1 ? "" : "s", arguments.positional.size()));
    return false;
  }
  std::copy(arguments.positional.begin(), arguments.positional.end(), bound.begin());
  for (const auto& [name, value] : arguments.named) {
    const auto found = std::find(parameters.begin(), parameters.end(), name);
    if (found == parameters.end() || name.empty()) {
      run.Fail(fmt::format("{}() got an unexpected keyword argument '{}'", name_, name));
      return false;
    }
    Value& place = bound[static_cast<size_t>(found - parameters.begin())];
    if (!place.IsMissing()) {
      run.Fail(fmt::format("{}() got multiple values for argument '{}'", name_, name));
      return false;
    }
    place = value;
  }
  for (size_t i = 0; i < num_required_; ++i) {
    if (!bound[i].IsMissing()) continue;
    run.Fail(fmt::format("{}() is missing its argument {} {}", name_, i + 1, parameters[i]));
    return false;
  }
  return true;
}

Value Builtin::Call(Run& run, const Value& input, const Arguments& arguments) const {
  if (std::holds_alternative<std::monostate>(call_)) {
    return run.Fail(
        fmt::format("the method '{}' of '{}' is not supported", name_, TypeName(input)));
  }
  if (const auto* call = std::get_if<WithAny>(&call_)) return (*call)(run, input, arguments);
  Bound bound;
  if (run.failed() || !Bind(run, arguments, bound)) return None{};
  if (const auto* call = std::get_if<Plain>(&call_)) return (*call)(run, input);
  return std::get<WithParameters>(call_)(run, input, bound);
}

const Builtin* FindIn(std::span<const Builtin> table, std::string_view name) {
  const auto found = std::ranges::find(table, name, &Builtin::name);
  return found == table.end() ? nullptr : &*found;
}

const Builtin* FindFilter(std::string_view name) {
  for (const auto& table :
       {TextFilters(), NumberFilters(), SequenceFilters(), OrderFilters(), ElementFilters()}) {
    if (const Builtin* found = FindIn(table, name)) return found;
  }
  return nullptr;
}

bool IsFilterName(std::string_view name) {
  return FindFilter(name) != nullptr || std::ranges::count(kUnsupportedFilters, name) > 0;
}

std::string DescribeMissingFilter(std::string_view name) {
  return IsFilterName(name) ? fmt::format("the filter '{}' is not supported", name)
                            : fmt::format("No filter named '{}'.", name);
}

std::string DescribeMissingTest(std::string_view name) {
  return fmt::format("No test named '{}'.", name);
}

}  // namespace convene::jinja
