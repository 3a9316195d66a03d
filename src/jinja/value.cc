#include "jinja/value.h"

#include <algorithm>
#include <iterator>

#include "jinja/compare.h"

namespace convene::jinja {

const Value* Dict::Find(Run& run, const Value& key) const {
  const auto found =
      std::lower_bound(order.begin(), order.end(), key, [&](uint32_t entry_idx, const Value& k) {
        return KeyLess(run, entries[entry_idx].first, k);
      });
  if (found == order.end() || KeyLess(run, key, entries[*found].first)) return nullptr;
  return &entries[*found].second;
}

const Value* Dict::Find(std::string_view key) const {
  // Strings are one run within the order of keys (see KeyLess): what is no string lies outside.
  const auto before = [&](uint32_t entry_idx, std::string_view k) {
    const Value& entry = entries[entry_idx].first;
    return entry.IsString() ? entry.Text() < k : !entry.HasElements();
  };
  const auto found = std::lower_bound(order.begin(), order.end(), key, before);
  if (found == order.end()) return nullptr;
  const Entry& entry = entries[*found];
  return entry.first.IsString() && entry.first.Text() == key ? &entry.second : nullptr;
}

const Value* Namespace::Find(std::string_view name) const {
  const auto found = index.find(name);
  return found == index.end() ? nullptr : &attributes[found->second].second;
}

const Value* Loop::At(int64_t index) {
  if (index < 0) return nullptr;
  const auto wanted = static_cast<size_t>(index);
  const Values& all = items->values;
  if (!test && chosen.empty()) return wanted < all.size() ? &all[wanted] : nullptr;
  while (test && chosen.size() <= wanted && num_tested < all.size()) {
    const size_t candidate = num_tested++;
    if (test(all[candidate])) chosen.push_back(candidate);
  }
  return wanted < chosen.size() ? &all[chosen[wanted]] : nullptr;
}

int64_t Loop::Length() {
  const auto num_items = static_cast<int64_t>(items->values.size());
  if (!test && chosen.empty()) return num_items;
  At(num_items);  // tests all
  return static_cast<int64_t>(chosen.size());
}

Value Value::Constant(std::string text) {
  return Value(std::make_shared<const StringData>(std::move(text)));
}

int DepthOf(const Value& value) {
  switch (value.kind()) {
    case Kind::kList:
    case Kind::kTuple:
      return value.SharedItems()->depth;
    case Kind::kDict:
      return value.AsDict().depth;
    case Kind::kDictView:
      return value.Get<DictView>().dict->depth;
    case Kind::kIterator:
      return value.Get<std::shared_ptr<Iterator>>()->items->depth;
    case Kind::kLoop:
      return value.Get<std::shared_ptr<Loop>>()->items->depth;
    case Kind::kCycler:
      return value.Get<std::shared_ptr<Cycler>>()->items->depth;
    case Kind::kJoiner:
      return value.Get<std::shared_ptr<Joiner>>()->separator->depth;
    case Kind::kMethod:
      return value.Get<Method>().self->depth;
    default:
      return 0;
  }
}

bool IsTrue(const Value& value) {
  switch (value.kind()) {
    case Kind::kMissing:
    case Kind::kUndefined:
    case Kind::kNone:
      return false;
    case Kind::kBool:
    case Kind::kInt:
      return value.Int() != 0;
    case Kind::kFloat:
      return value.Float() != 0;
    case Kind::kString:
      return !value.Text().empty();
    case Kind::kList:
    case Kind::kTuple:
      return !value.Elements().empty();
    case Kind::kDict:
      return !value.AsDict().entries.empty();
    case Kind::kDictView:
      return !value.Get<DictView>().dict->entries.empty();
    case Kind::kRange:
      return value.AsRange().length != 0;
    case Kind::kLoop:
      return value.Get<std::shared_ptr<Loop>>()->Length() != 0;
    default:
      return true;
  }
}

std::string_view TypeName(const Value& value) {
  // By kind; a view of a dict has the name of its part.
  constexpr std::string_view kNames[] = {
      "missing", "Undefined", "NoneType",  "bool",      "int",
      "float",   "str",       "list",      "tuple",     "dict",
      "",        "range",     "generator", "Namespace", "LoopContext",
      "Macro",   "Cycler",    "Joiner",    "function",  "builtin_function_or_method"};
  static_assert(std::size(kNames) == static_cast<size_t>(Kind::kMethod) + 1);
  constexpr std::string_view kViewNames[] = {"dict_keys", "dict_values", "dict_items"};
  if (value.IsString() && value.String().safe) return "Markup";
  if (value.Is(Kind::kDictView)) return kViewNames[static_cast<size_t>(value.Get<DictView>().part)];
  return kNames[static_cast<size_t>(value.kind())];
}

std::string ObjectName(const Value& value) {
  if (value.IsNone()) return "None";
  switch (value.kind()) {
    case Kind::kNamespace:
      return "namespace object";
    case Kind::kLoop:
      return "jinja2.runtime.LoopContext object";
    case Kind::kMacro:
      return "jinja2.runtime.Macro object";
    default:
      return std::string(TypeName(value)) + " object";
  }
}

}  // namespace convene::jinja
