#include "jinja/sequence.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/utf8.h"
#include "jinja/compare.h"
#include "jinja/python_text.h"

namespace convene::jinja {
namespace {

std::shared_ptr<const Items> Characters(Run& run, const StringData& string) {
  constexpr size_t kCharacterBytes = 160;  // a value and its text
  const size_t num_characters = Length(string.text);
  if (!run.SpendText(string.text.size()) || !run.MayAllocate(num_characters * kCharacterBytes)) {
    return std::make_shared<Items>();
  }
  Values characters;
  characters.reserve(num_characters);
  for (size_t pos = 0; pos < string.text.size() && !run.failed();) {
    const size_t begin = pos;
    ReadCodePoint(string.text, &pos);
    characters.push_back(run.String(string.text.substr(begin, pos - begin)));
  }
  return run.Share(std::move(characters));
}

std::shared_ptr<const Items> EntriesOf(Run& run, const Dict& dict, DictView::Part part) {
  Values values;
  values.reserve(dict.entries.size());
  for (const auto& [key, value] : dict.entries) {
    values.push_back(part == DictView::Part::kKeys     ? key
                     : part == DictView::Part::kValues ? value
                                                       : run.NewTuple({key, value}));
  }
  return run.Share(std::move(values));
}

std::shared_ptr<const Items> Numbers(Run& run, const Range& range) {
  Values values;
  values.reserve(static_cast<size_t>(range.length));
  for (int64_t i = 0; i < range.length; ++i) values.emplace_back(range.start + i * range.step);
  return run.Share(std::move(values));
}

std::shared_ptr<const Items> TakeRest(Run& run, Iterator& iterator) {
  const size_t next = std::exchange(iterator.next, iterator.items->values.size());
  if (next == 0) return iterator.items;
  const auto begin = iterator.items->values.begin() + static_cast<std::ptrdiff_t>(next);
  return run.Share(Values(begin, iterator.items->values.end()));
}

// The place that a Python index means in a sequence of `length`; none where it is outside.
std::optional<size_t> PlaceOf(const Value& index, int64_t length) {
  if (!index.IsInteger()) return std::nullopt;
  const int64_t i = index.Int() < 0 ? index.Int() + length : index.Int();
  if (i < 0 || i >= length) return std::nullopt;
  return static_cast<size_t>(i);
}

// A slice of a sequence of `length`, as Python's slice.indices() has it.
struct SliceIndices {
  int64_t start, stop, step, count;
};
std::optional<SliceIndices> IndicesOf(Run& run, int64_t length, const Value& start,
                                      const Value& stop, const Value& step) {
  for (const Value* part : {&start, &stop, &step}) {
    if (part->IsInteger() || part->IsNone()) continue;
    run.Fail(part->IsUndefined() ? part->AsUndefined().message
                                 : "slice indices must be integers or None");
    return std::nullopt;
  }
  // More than a text can hold, and small enough that no sum below overflows.
  constexpr int64_t kFar = int64_t{1} << 60;
  const int64_t by = step.IsNone() ? 1 : std::clamp(step.Int(), -kFar, kFar);
  if (by == 0) {
    run.Fail("slice step cannot be zero");
    return std::nullopt;
  }
  const int64_t lowest = by > 0 ? 0 : -1, highest = by > 0 ? length : length - 1;
  const auto bound = [&](const Value& part, int64_t otherwise) {
    if (part.IsNone()) return otherwise;
    const int64_t i = std::clamp(part.Int(), -kFar, kFar);
    return std::clamp(i < 0 ? i + length : i, lowest, highest);
  };
  const int64_t first = bound(start, by > 0 ? lowest : highest);
  const int64_t last = bound(stop, by > 0 ? highest : lowest);
  const int64_t distance = by > 0 ? last - first : first - last;
  const int64_t stride = by > 0 ? by : -by;
  return SliceIndices{.start = first,
                      .stop = last,
                      .step = by,
                      .count = distance <= 0 ? 0 : (distance - 1) / stride + 1};
}

Value SliceString(Run& run, const StringData& string, const SliceIndices& slice) {
  const std::string& text = string.text;
  if (!run.SpendText(text.size())) return None{};
  if (slice.step == 1) {
    const size_t begin = ByteOffset(text, static_cast<size_t>(slice.start));
    const std::string_view rest = std::string_view(text).substr(begin);
    const size_t size = ByteOffset(rest, static_cast<size_t>(slice.count));
    return run.String(std::string(rest.substr(0, size)), string.safe);
  }
  if (!run.MayAllocate(text.size() * sizeof(size_t))) return None{};
  std::vector<size_t> begins;
  for (size_t pos = 0; pos < text.size(); ReadCodePoint(text, &pos)) begins.push_back(pos);
  begins.push_back(text.size());
  std::string out;
  for (int64_t i = 0; i < slice.count; ++i) {
    const auto at = static_cast<size_t>(slice.start + i * slice.step);
    out.append(text, begins[at], begins[at + 1] - begins[at]);
  }
  return run.String(std::move(out), string.safe);
}

Value SliceRange(Run& run, const Range& range, const SliceIndices& slice) {
  // What element `index` would be; the stop may lie behind the last one.
  bool overflows = false;
  const auto at = [&](int64_t index) {
    int64_t value = 0;
    overflows |= __builtin_mul_overflow(index, range.step, &value);
    overflows |= __builtin_add_overflow(value, range.start, &value);
    return value;
  };
  Range result{.start = at(slice.start), .stop = at(slice.stop), .step = 0, .length = slice.count};
  overflows |= __builtin_mul_overflow(range.step, slice.step, &result.step);
  if (overflows) return run.Fail("a slice of a range exceeds 64-bit integers");
  return std::make_shared<const Range>(result);
}

bool ContainsText(Run& run, const StringData& text, const Value& part) {
  if (!part.IsString()) {
    run.Fail(fmt::format("'in <string>' requires string as left operand, not {}", TypeName(part)));
    return false;
  }
  return run.SpendText(text.text.size()) && FindFirst(text.text, part.Text()) != std::string::npos;
}

}  // namespace

bool IsIterable(const Value& value) {
  using enum Kind;
  constexpr Kind kIterable[] = {kUndefined, kString, kList,     kTuple, kDict,
                                kDictView,  kRange,  kIterator, kLoop};
  return std::ranges::count(kIterable, value.kind()) > 0;
}

std::shared_ptr<const Items> Iterate(Run& run, const Value& value) {
  switch (value.kind()) {
    case Kind::kUndefined:
      return std::make_shared<const Items>();
    case Kind::kString:
      return Characters(run, value.String());
    case Kind::kList:
    case Kind::kTuple:
      return value.SharedItems();
    case Kind::kDict:
      return EntriesOf(run, value.AsDict(), DictView::Part::kKeys);
    case Kind::kDictView:
      return EntriesOf(run, *value.Get<DictView>().dict, value.Get<DictView>().part);
    case Kind::kRange:
      return Numbers(run, value.AsRange());
    case Kind::kIterator:
      return TakeRest(run, *value.Get<std::shared_ptr<Iterator>>());
    case Kind::kLoop:
      run.Fail("iterating over the variable 'loop' is not supported");
      return std::make_shared<const Items>();
    default:
      run.Fail(fmt::format("'{}' object is not iterable", TypeName(value)));
      return std::make_shared<const Items>();
  }
}

std::optional<int64_t> LengthOf(const Value& value) {
  switch (value.kind()) {
    case Kind::kUndefined:
      return 0;
    case Kind::kString:
      return static_cast<int64_t>(Length(value.Text()));
    case Kind::kList:
    case Kind::kTuple:
      return static_cast<int64_t>(value.Elements().size());
    case Kind::kDict:
      return static_cast<int64_t>(value.AsDict().entries.size());
    case Kind::kDictView:
      return static_cast<int64_t>(value.Get<DictView>().dict->entries.size());
    case Kind::kRange:
      return value.AsRange().length;
    case Kind::kLoop:
      return value.Get<std::shared_ptr<Loop>>()->Length();
    default:
      return std::nullopt;
  }
}

Value Len(Run& run, const Value& value) {
  if (value.IsString() && !run.SpendText(value.Text().size())) return None{};
  const std::optional<int64_t> length = LengthOf(value);
  if (!length) return run.Fail(fmt::format("object of type '{}' has no len()", TypeName(value)));
  return *length;
}

Value Subscript(Run& run, const Value& value, const Value& key) {
  switch (value.kind()) {
    case Kind::kString: {
      const std::string& text = value.Text();
      if (!key.IsInteger() || !run.SpendText(text.size())) return {};
      const auto place = PlaceOf(key, static_cast<int64_t>(Length(text)));
      if (!place) return {};
      const size_t begin = ByteOffset(text, *place);
      size_t end = begin;
      ReadCodePoint(text, &end);
      return run.String(text.substr(begin, end - begin), value.String().safe);
    }
    case Kind::kList:
    case Kind::kTuple: {
      const auto place = PlaceOf(key, static_cast<int64_t>(value.Elements().size()));
      return place ? value.Elements()[*place] : Value();
    }
    case Kind::kRange: {
      const auto place = PlaceOf(key, value.AsRange().length);
      if (!place) return {};
      return value.AsRange().start + static_cast<int64_t>(*place) * value.AsRange().step;
    }
    case Kind::kDict: {
      // Python's TypeError for a key such as a list counts as "not found" in Jinja.
      const bool is_hashable = !key.Is(Kind::kList) && !key.Is(Kind::kDict) &&
                               !key.Is(Kind::kDictView) && !key.Is(Kind::kMethod);
      if (!is_hashable || (key.Is(Kind::kTuple) && !CheckHashable(run, key))) return {};
      const Value* found = value.AsDict().Find(run, key);
      return found == nullptr ? Value() : *found;
    }
    default:
      return {};
  }
}

Value TakeSlice(Run& run, const Value& value, const Value& start, const Value& stop,
                const Value& step) {
  if (value.IsUndefined()) return run.Fail(value.AsUndefined().message);
  if (!value.IsString() && !value.HasElements() && !value.Is(Kind::kRange)) {
    return run.Fail(fmt::format("'{}' object cannot be sliced", TypeName(value)));
  }
  if (value.IsString() && !run.SpendText(value.Text().size())) return None{};
  const auto slice = IndicesOf(run, *LengthOf(value), start, stop, step);
  if (!slice) return None{};
  if (value.IsString()) return SliceString(run, value.String(), *slice);
  if (value.Is(Kind::kRange)) {
    return SliceRange(run, value.AsRange(), *slice);
  }
  Values elements;
  for (int64_t i = 0; i < slice->count; ++i) {
    elements.push_back(value.Elements()[static_cast<size_t>(slice->start + i * slice->step)]);
  }
  return value.Is(Kind::kList) ? run.NewList(std::move(elements))
                               : run.NewTuple(std::move(elements));
}

bool Contains(Run& run, const Value& container, const Value& item) {
  switch (container.kind()) {
    case Kind::kString:
      return ContainsText(run, container.String(), item);
    case Kind::kDict:
      return CheckHashable(run, item) && container.AsDict().Find(run, item) != nullptr;
    case Kind::kDictView:
      if (container.Get<DictView>().part == DictView::Part::kKeys) {
        return CheckHashable(run, item) &&
               container.Get<DictView>().dict->Find(run, item) != nullptr;
      }
      break;
    case Kind::kIterator: {
      // Stops behind the element that it finds.
      Iterator& iterator = *container.Get<std::shared_ptr<Iterator>>();
      while (iterator.next < iterator.items->values.size() && !run.failed()) {
        if (Equal(run, iterator.items->values[iterator.next++], item)) return true;
      }
      return false;
    }
    default:
      break;
  }
  if (!IsIterable(container)) {
    run.Fail(fmt::format("argument of type '{}' is not iterable", TypeName(container)));
    return false;
  }
  const std::shared_ptr<const Items> items = Iterate(run, container);
  for (const Value& element : items->values) {
    if (run.failed()) return false;
    if (Equal(run, element, item)) return true;
  }
  return false;
}

}  // namespace convene::jinja
