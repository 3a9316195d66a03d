#include "jinja/compare.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <functional>

namespace convene::jinja {
namespace {

bool ElementsEqual(Run& run, const Values& a, const Values& b) {
  if (&a == &b) return true;
  if (a.size() != b.size()) return false;
  for (size_t i = 0; i < a.size(); ++i) {
    if (!Equal(run, a[i], b[i]) || run.failed()) return false;
  }
  return true;
}

bool DictsEqual(Run& run, const Dict& a, const Dict& b) {
  if (&a == &b) return true;
  if (a.entries.size() != b.entries.size()) return false;
  for (const auto& [key, value] : a.entries) {
    const Value* other = b.Find(run, key);
    if (other == nullptr || !Equal(run, value, *other) || run.failed()) return false;
  }
  return true;
}

bool ElementsLess(Run& run, const Values& a, const Values& b) {
  const size_t common = std::min(a.size(), b.size());
  for (size_t i = 0; i < common; ++i) {
    if (!Equal(run, a[i], b[i])) return !run.failed() && Less(run, a[i], b[i]);
  }
  return a.size() < b.size();
}

// The address that makes a value the same as itself only.
const void* Identity(const Value& value) {
  switch (value.kind()) {
    case Kind::kNamespace:
      return value.Get<Namespace*>();
    case Kind::kLoop:
      return value.Get<std::shared_ptr<Loop>>().get();
    case Kind::kMacro:
      return value.Get<MacroValue>().macro;
    case Kind::kFunction:
      return value.Get<const Builtin*>();
    case Kind::kIterator:
      return value.Get<std::shared_ptr<Iterator>>().get();
    case Kind::kCycler:
      return value.Get<std::shared_ptr<Cycler>>().get();
    case Kind::kJoiner:
      return value.Get<std::shared_ptr<Joiner>>().get();
    case Kind::kRange:
      return value.Get<std::shared_ptr<const Range>>().get();
    default:
      return nullptr;
  }
}

int KeyRank(const Value& value) {
  if (value.IsUndefined()) return 0;
  if (value.IsNone()) return 1;
  if (value.IsNumber()) return 2;
  if (value.IsString()) return 4;
  if (value.HasElements()) return 5;
  return 3;
}

}  // namespace

int CompareNumbers(const Value& a, const Value& b) {
  if (a.IsInteger() && b.IsInteger()) {
    return a.Int() < b.Int() ? -1 : a.Int() > b.Int() ? 1 : 0;
  }
  if (!a.IsInteger() && !b.IsInteger()) {
    const double x = a.Float(), y = b.Float();
    return std::isnan(x) || std::isnan(y) ? 2 : x < y ? -1 : x > y ? 1 : 0;
  }
  if (b.IsInteger()) {
    const int reversed = CompareNumbers(b, a);
    return reversed == 2 ? 2 : -reversed;
  }
  // int against float: a 64-bit mantissa holds both exactly (x87; elsewhere long double is wider).
  const long double x = a.Int(), y = b.Float();
  return std::isnan(y) ? 2 : x < y ? -1 : x > y ? 1 : 0;
}

bool Equal(Run& run, const Value& a, const Value& b) {
  if (!run.Spend()) return false;
  if (a.IsNumber() && b.IsNumber()) return CompareNumbers(a, b) == 0;
  if (a.kind() != b.kind()) return false;
  switch (a.kind()) {
    case Kind::kUndefined:
    case Kind::kNone:
    case Kind::kMissing:
      return true;
    case Kind::kString:
      return run.SpendText(std::min(a.Text().size(), b.Text().size())) && a.Text() == b.Text();
    case Kind::kList:
    case Kind::kTuple:
      return ElementsEqual(run, a.Elements(), b.Elements());
    case Kind::kDict:
      return DictsEqual(run, a.AsDict(), b.AsDict());
    case Kind::kRange: {
      const Range& x = a.AsRange();
      const Range& y = b.AsRange();
      return x.length == y.length && (x.length == 0 || x.start == y.start) &&
             (x.length <= 1 || x.step == y.step);
    }
    case Kind::kDictView:
    case Kind::kMethod:
      run.Fail(fmt::format("comparing two values of type '{}' is not supported", TypeName(a)));
      return false;
    default:
      return Identity(a) == Identity(b);
  }
}

bool Less(Run& run, const Value& a, const Value& b) {
  if (!run.Spend()) return false;
  if (a.IsNumber() && b.IsNumber()) return CompareNumbers(a, b) == -1;
  if (a.IsUndefined() || b.IsUndefined()) {
    run.Fail((a.IsUndefined() ? a : b).AsUndefined().message);
    return false;
  }
  if (a.kind() == b.kind() && a.IsString()) {
    return run.SpendText(std::min(a.Text().size(), b.Text().size())) && a.Text() < b.Text();
  }
  if (a.kind() == b.kind() && a.HasElements()) {
    return ElementsLess(run, a.Elements(), b.Elements());
  }
  run.Fail(fmt::format("'<' is not supported between instances of '{}' and '{}'", TypeName(a),
                       TypeName(b)));
  return false;
}

bool CheckHashable(Run& run, const Value& value) {
  switch (value.kind()) {
    case Kind::kList:
    case Kind::kDict:
    case Kind::kDictView:
    case Kind::kMethod:
      run.Fail(fmt::format("unhashable type: '{}'", TypeName(value)));
      return false;
    case Kind::kTuple:
      for (const Value& element : value.Elements()) {
        if (!run.Spend() || !CheckHashable(run, element)) return false;
      }
      return true;
    default:
      return true;
  }
}

bool KeyLess(Run& run, const Value& a, const Value& b) {
  if (!run.Spend()) return false;
  const int rank = KeyRank(a);
  if (rank != KeyRank(b)) return rank < KeyRank(b);
  switch (rank) {
    case 2: {
      const int order = CompareNumbers(a, b);
      if (order != 2) return order == -1;
      const bool a_is_nan = std::isnan(a.Float()), b_is_nan = std::isnan(b.Float());
      return a_is_nan && !b_is_nan;
    }
    case 3:
      return std::less<>()(Identity(a), Identity(b));
    case 4:
      return a.Text() < b.Text();
    case 5:
      return std::lexicographical_compare(
          a.Elements().begin(), a.Elements().end(), b.Elements().begin(), b.Elements().end(),
          [&](const Value& x, const Value& y) { return KeyLess(run, x, y); });
    default:
      return false;
  }
}

}  // namespace convene::jinja
