// Filters that apply another filter or a test to each element: map, select, selectattr, reject, ...

#include "jinja/builtins.h"
#include "jinja/element_access.h"
#include "jinja/repr.h"
#include "jinja/sequence.h"

namespace convene::jinja {
namespace {

Value MapAttribute(Run& run, const Value& input, Bound& bound) {
  const AttributePath path(run, bound[0]);
  Values results;
  const auto items = Iterate(run, input);
  for (const Value& item : items->values) {
    if (!run.Spend()) return None{};
    results.push_back(path.Get(item, bound[1]));
  }
  return run.NewIterator(std::move(results));
}

constexpr Builtin kMapAttribute = {"map", MapAttribute, {"attribute", "default"}, 1};

Value Map(Run& run, const Value& input, const Arguments& arguments) {
  if (!IsTrue(input)) return run.NewIterator({});
  if (arguments.positional.empty()) {
    if (!arguments.named.empty()) return kMapAttribute.Call(run, input, arguments);
    return run.Fail("map requires a filter argument");
  }
  const std::string name = Str(run, arguments.positional[0]);
  const Builtin* filter = FindFilter(name);
  if (filter == nullptr) return run.Fail(DescribeMissingFilter(name));
  Arguments rest{.positional = {arguments.positional.begin() + 1, arguments.positional.end()},
                 .named = arguments.named};
  Values results;
  const auto items = Iterate(run, input);
  for (const Value& item : items->values) {
    if (!run.Spend()) return None{};
    results.push_back(filter->Call(run, item, rest));
  }
  return run.NewIterator(std::move(results));
}

// Elements whose value (or attribute) passes the test that the arguments name; without a name,
// those that are true.
template <bool is_kept, bool has_attribute>
Value Choose(Run& run, const Value& input, const Arguments& arguments) {
  if (!IsTrue(input)) return run.NewIterator({});
  const Values& given = arguments.positional;
  if (has_attribute && given.empty()) return run.Fail("Missing parameter for attribute name");
  const AttributePath path(run, has_attribute ? given[0] : Value(None{}));
  const size_t num_taken = has_attribute ? 1 : 0;
  const Builtin* test = nullptr;
  Arguments rest;
  if (given.size() > num_taken) {
    const std::string name = Str(run, given[num_taken]);
    test = FindTest(name);
    if (test == nullptr) return run.Fail(DescribeMissingTest(name));
    rest.positional.assign(given.begin() + static_cast<std::ptrdiff_t>(num_taken) + 1, given.end());
    rest.named = arguments.named;
  }
  Values chosen;
  const auto items = Iterate(run, input);
  for (const Value& item : items->values) {
    if (!run.Spend()) return None{};
    const Value value = path.Get(item);
    const bool passes = test == nullptr ? IsTrue(value) : IsTrue(test->Call(run, value, rest));
    if (passes == is_kept) chosen.push_back(item);
  }
  return run.NewIterator(std::move(chosen));
}

constexpr Builtin kElementFilters[] = {
    {"map", Map},
    {"reject", Choose<false, false>},
    {"rejectattr", Choose<false, true>},
    {"select", Choose<true, false>},
    {"selectattr", Choose<true, true>},
};

}  // namespace

std::span<const Builtin> ElementFilters() { return kElementFilters; }

}  // namespace convene::jinja
