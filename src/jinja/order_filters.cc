// Filters that compare elements: sort, unique, min, groupby, ... and the sum.
#include <fmt/format.h>

#include <algorithm>
#include <set>

#include "jinja/arguments.h"
#include "jinja/builtins.h"
#include "jinja/compare.h"
#include "jinja/element_access.h"
#include "jinja/operators.h"
#include "jinja/sequence.h"

namespace convene::jinja {
namespace {

struct Keyed {
  Value key, value;
};

// Python's sorted(): stable in both directions.
void SortByKey(Run& run, std::vector<Keyed>& items, bool is_reversed) {
  const auto less = [&](const Keyed& a, const Keyed& b) { return Less(run, a.key, b.key); };
  if (is_reversed) std::reverse(items.begin(), items.end());
  std::stable_sort(items.begin(), items.end(), less);
  if (is_reversed) std::reverse(items.begin(), items.end());
}

Value ListOfValues(Run& run, std::vector<Keyed>& items) {
  Values values;
  values.reserve(items.size());
  for (Keyed& item : items) values.push_back(std::move(item.value));
  return run.NewList(std::move(values));
}

Value Sort(Run& run, const Value& input, Bound& bound) {
  const AttributePaths paths(run, NoneIfMissing(bound[2]));
  std::vector<Keyed> keyed;
  const auto items = Iterate(run, input);
  for (const Value& item : items->values) {
    keyed.push_back({paths.Key(item, IsTrueOr(bound[1], false)), item});
  }
  SortByKey(run, keyed, IsTrueOr(bound[0], false));
  return ListOfValues(run, keyed);
}

Value DictSort(Run& run, const Value& input, Bound& bound) {
  const std::string* by_text = bound[1].IsMissing() ? nullptr : ToText(run, bound[1]);
  const std::string by = by_text == nullptr ? "key" : *by_text;
  if (by != "key" && by != "value") {
    return run.Fail("You can only sort by either \"key\" or \"value\"");
  }
  if (input.IsUndefined()) return run.Fail(input.AsUndefined().message);
  if (!input.Is(Kind::kDict)) {
    return run.Fail(fmt::format("'{}' object has no attribute 'items'", TypeName(input)));
  }
  std::vector<Keyed> items;
  for (const auto& [key, value] : input.AsDict().entries) {
    items.push_back({FoldCase(run, by == "key" ? key : value, IsTrueOr(bound[0], false)),
                     run.NewTuple({key, value})});
  }
  SortByKey(run, items, IsTrueOr(bound[2], false));
  return ListOfValues(run, items);
}

Value Unique(Run& run, const Value& input, Bound& bound) {
  const AttributePath path(run, NoneIfMissing(bound[1]));
  const auto less = [&](const Value& a, const Value& b) { return KeyLess(run, a, b); };
  std::set<Value, decltype(less)> seen(less);
  Values unique;
  const auto items = Iterate(run, input);
  for (const Value& item : items->values) {
    Value key = FoldCase(run, path.Get(item), IsTrueOr(bound[0], false));
    if (!CheckHashable(run, key)) return None{};
    if (seen.insert(std::move(key)).second) unique.push_back(item);
  }
  return run.NewIterator(std::move(unique));
}

template <bool is_max>
Value Extreme(Run& run, const Value& input, Bound& bound) {
  const AttributePath path(run, NoneIfMissing(bound[1]));
  const auto items = Iterate(run, input);
  if (items->values.empty()) {
    return run.NewUndefined("No aggregated item, sequence was empty.");
  }
  Value best, best_key;
  for (const Value& item : items->values) {
    Value key = FoldCase(run, path.Get(item), IsTrueOr(bound[0], false));
    const bool is_better =
        best_key.IsMissing() || (is_max ? Less(run, best_key, key) : Less(run, key, best_key));
    if (run.failed()) return None{};
    if (!is_better) continue;
    best = item;
    best_key = std::move(key);
  }
  return best;
}

Value GroupBy(Run& run, const Value& input, Bound& bound) {
  const AttributePath path(run, bound[0]);
  const bool is_case_sensitive = IsTrueOr(bound[2], false);
  std::vector<Keyed> keyed;
  const auto items = Iterate(run, input);
  for (const Value& item : items->values) {
    keyed.push_back({FoldCase(run, path.Get(item, bound[1]), is_case_sensitive), item});
  }
  SortByKey(run, keyed, /*is_reversed=*/false);
  Values groups;
  for (size_t begin = 0, end = 0; begin < keyed.size() && !run.failed(); begin = end) {
    Values group;
    for (; end < keyed.size() && (end == begin || Equal(run, keyed[begin].key, keyed[end].key));
         ++end) {
      group.push_back(keyed[end].value);
    }
    Value key = path.Get(group.front(), bound[1]);  // in its own case
    groups.push_back(run.NewTuple({std::move(key), run.NewList(std::move(group))}, true));
  }
  return run.NewList(std::move(groups));
}

Value Sum(Run& run, const Value& input, Bound& bound) {
  const AttributePath path(run, NoneIfMissing(bound[0]));
  Value sum = bound[1].IsMissing() ? Value(int64_t{0}) : bound[1];
  if (sum.IsString()) return run.Fail("sum() can't sum strings [use ''.join(seq) instead]");
  const auto items = Iterate(run, input);
  for (const Value& item : items->values) {
    if (run.failed()) return None{};
    sum = ApplyBinary(run, BinaryOperator::kAdd, sum, path.Get(item));
  }
  return sum;
}

constexpr Builtin kOrderFilters[] = {
    {"dictsort", DictSort, {"case_sensitive", "by", "reverse"}},
    {"groupby", GroupBy, {"attribute", "default", "case_sensitive"}, 1},
    {"max", Extreme<true>, {"case_sensitive", "attribute"}},
    {"min", Extreme<false>, {"case_sensitive", "attribute"}},
    {"sort", Sort, {"reverse", "case_sensitive", "attribute"}},
    {"sum", Sum, {"attribute", "start"}},
    {"unique", Unique, {"case_sensitive", "attribute"}},
};

}  // namespace

std::span<const Builtin> OrderFilters() { return kOrderFilters; }

}  // namespace convene::jinja
