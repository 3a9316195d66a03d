// Filters that take sequences apart and put them together: first, last, list, batch, items, ...
#include <fmt/format.h>

#include <algorithm>

#include "jinja/arguments.h"
#include "jinja/attributes.h"
#include "jinja/builtins.h"
#include "jinja/sequence.h"

namespace convene::jinja {
namespace {

Value First(Run& run, const Value& input) {
  const auto none_found = [&]() { return run.NewUndefined("No first item, sequence was empty."); };
  if (input.Is(Kind::kIterator)) {  // takes one element only
    Iterator& iterator = *input.Get<std::shared_ptr<Iterator>>();
    if (iterator.next == iterator.items->values.size()) return none_found();
    return iterator.items->values[iterator.next++];
  }
  if (input.IsString() && !input.Text().empty()) return Subscript(run, input, int64_t{0});
  const auto items = Iterate(run, input);
  return items->values.empty() ? none_found() : items->values.front();
}

Value Last(Run& run, const Value& input) {
  if (input.Is(Kind::kIterator) || input.Is(Kind::kLoop)) {
    return run.Fail(fmt::format("'{}' object is not reversible", TypeName(input)));
  }
  if (input.IsString() && !input.Text().empty()) return Subscript(run, input, int64_t{-1});
  const auto items = Iterate(run, input);
  if (items->values.empty()) return run.NewUndefined("No last item, sequence was empty.");
  return items->values.back();
}

Value Reverse(Run& run, const Value& input) {
  if (input.IsString()) return TakeSlice(run, input, None{}, None{}, int64_t{-1});
  if (!IsIterable(input)) return run.Fail("argument must be iterable");
  Values values = Iterate(run, input)->values;
  std::reverse(values.begin(), values.end());
  return input.Is(Kind::kIterator) ? run.NewList(std::move(values))
                                   : run.NewIterator(std::move(values));
}

Value AsList(Run& run, const Value& input) { return List{Iterate(run, input)}; }

Value ItemsOf(Run& run, const Value& input) {
  if (input.IsUndefined()) return run.NewIterator({});
  if (!input.Is(Kind::kDict)) return run.Fail("Can only get item pairs from a mapping.");
  Values pairs;
  for (const auto& [key, value] : input.AsDict().entries) {
    pairs.push_back(run.NewTuple({key, value}));
  }
  return run.NewIterator(std::move(pairs));
}

Value Batch(Run& run, const Value& input, Bound& bound) {
  const auto size = ToInteger(run, bound[0]);
  if (!size) return None{};
  const bool fills = IsGiven(bound[1]);
  Values batches, batch;
  const auto items = Iterate(run, input);
  for (const Value& item : items->values) {
    if (static_cast<int64_t>(batch.size()) == *size) {
      batches.push_back(run.NewList(std::exchange(batch, {})));
    }
    batch.push_back(item);
  }
  if (!batch.empty()) {
    const auto missing = *size - static_cast<int64_t>(batch.size());
    if (fills && missing > 0) {
      const auto count = static_cast<size_t>(missing);
      if (!run.Spend(count) || !run.MayAllocate(count * sizeof(Value))) return None{};
      batch.insert(batch.end(), count, bound[1]);
    }
    batches.push_back(run.NewList(std::move(batch)));
  }
  return run.NewIterator(std::move(batches));
}

Value SliceInto(Run& run, const Value& input, Bound& bound) {
  const auto num_slices = ToInteger(run, bound[0]);
  if (!num_slices) return None{};
  const auto items = Iterate(run, input);
  if (*num_slices == 0) return run.Fail("integer division or modulo by zero");
  const bool fills = IsGiven(bound[1]);
  const auto length = static_cast<int64_t>(items->values.size());
  Values slices;
  auto next = items->values.begin();
  for (int64_t i = 0; i < *num_slices && run.Spend(); ++i) {
    const bool has_extra = i < length % *num_slices;
    const int64_t size = length / *num_slices + (has_extra ? 1 : 0);
    Values slice(next, next + size);
    next += size;
    if (fills && !has_extra) slice.push_back(bound[1]);
    slices.push_back(run.NewList(std::move(slice)));
  }
  return run.NewIterator(std::move(slices));
}

Value Attribute(Run& run, const Value& input, Bound& bound) {
  const std::string* text = ToText(run, bound[0]);
  if (text == nullptr) return None{};
  if (input.IsUndefined()) return run.Fail(input.AsUndefined().message);
  Value own = OwnAttribute(run, input, *text);
  return own.IsMissing() ? UndefinedAttribute(run, input, *text) : own;
}

constexpr Builtin kSequenceFilters[] = {
    {"attr", Attribute, {"name"}, 1},
    {"batch", Batch, {"linecount", "fill_with"}, 1},
    {"count", Len},
    {"first", First},
    {"items", ItemsOf},
    {"last", Last},
    {"length", Len},
    {"list", AsList},
    {"reverse", Reverse},
    {"slice", SliceInto, {"slices", "fill_with"}, 1},
};

}  // namespace

std::span<const Builtin> SequenceFilters() { return kSequenceFilters; }

}  // namespace convene::jinja
