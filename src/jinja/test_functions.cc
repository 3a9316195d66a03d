// The tests of Jinja: what stands behind `is`, as in `message.content is string`.
#include <fmt/format.h>

#include <algorithm>

#include "jinja/builtins.h"
#include "jinja/compare.h"
#include "jinja/operators.h"
#include "jinja/repr.h"
#include "jinja/sequence.h"

namespace convene::jinja {
namespace {

// A test without arguments that only looks at the value.
template <bool (*IsSo)(const Value&)>
Value Check(Run& /*run*/, const Value& input) {
  return IsSo(input);
}

bool IsDefined(const Value& value) { return !value.IsUndefined(); }
bool IsUndefined(const Value& value) { return value.IsUndefined(); }
bool IsNone(const Value& value) { return value.IsNone(); }
bool IsBoolean(const Value& value) { return value.Is(Kind::kBool); }
bool IsFalseConstant(const Value& value) { return value.Is(Kind::kBool) && !value.Bool(); }
bool IsTrueConstant(const Value& value) { return value.Is(Kind::kBool) && value.Bool(); }
bool IsInteger(const Value& value) { return value.Is(Kind::kInt); }
bool IsFloat(const Value& value) { return value.Is(Kind::kFloat); }
bool IsNumber(const Value& value) { return value.IsNumber(); }
bool IsString(const Value& value) { return value.IsString(); }
bool IsMapping(const Value& value) { return value.Is(Kind::kDict); }
bool IsEscaped(const Value& value) { return value.IsString() && value.String().safe; }

// What has a length and subscripts; undefined values have both.
bool IsSequence(const Value& value) {
  return value.IsUndefined() || value.IsString() || value.HasElements() || value.Is(Kind::kDict) ||
         value.Is(Kind::kRange);
}

bool IsCallable(const Value& value) {
  using enum Kind;
  constexpr Kind kCallable[] = {kUndefined, kLoop, kMacro, kJoiner, kFunction, kMethod};
  return std::ranges::count(kCallable, value.kind()) > 0;
}

template <Comparison comparison>
Value Compare(Run& run, const Value& input, Bound& bound) {
  return ApplyComparison(run, comparison, input, bound[0]);
}

Value IsIn(Run& run, const Value& input, Bound& bound) { return Contains(run, bound[0], input); }

bool HasRemainder(Run& run, const Value& input, const Value& divisor, int64_t remainder) {
  return Equal(run, ApplyBinary(run, BinaryOperator::kModulo, input, divisor), remainder);
}

template <int64_t remainder>
Value HasParity(Run& run, const Value& input) {
  return HasRemainder(run, input, int64_t{2}, remainder);
}

Value IsDivisibleBy(Run& run, const Value& input, Bound& bound) {
  return HasRemainder(run, input, bound[0], 0);
}

Value AskText(Run& run, std::string_view method, const Value& input) {
  const Value text = run.String(Str(run, input));
  return FindMethod(text, method)->Call(run, text, {});
}
Value IsLowerText(Run& run, const Value& input) { return AskText(run, "islower", input); }
Value IsUpperText(Run& run, const Value& input) { return AskText(run, "isupper", input); }

// Python's `is`, where the answer does not hang on how Python stores numbers and texts.
Value IsSameAs(Run& run, const Value& input, Bound& bound) {
  const Value& other = bound[0];
  if (input.kind() != other.kind()) return false;
  switch (input.kind()) {
    case Kind::kNone:
      return true;
    case Kind::kBool:
      return input.Bool() == other.Bool();
    case Kind::kNamespace:
      return input.Get<Namespace*>() == other.Get<Namespace*>();
    case Kind::kList:
    case Kind::kTuple:
      return input.SharedItems() == other.SharedItems();
    case Kind::kDict:
      return &input.AsDict() == &other.AsDict();
    default:
      return run.Fail(fmt::format("the test 'sameas' is not supported for values of type '{}'",
                                  TypeName(input)));
  }
}

Value IsFilter(Run& /*run*/, const Value& input) {
  return input.IsString() && IsFilterName(input.Text());
}

Value IsTest(Run& /*run*/, const Value& input) {
  return input.IsString() && FindTest(input.Text()) != nullptr;
}

bool IsIterableValue(const Value& value) { return IsIterable(value); }

constexpr Builtin kTests[] = {
    {"!=", Compare<Comparison::kNotEqual>, {""}, 1},
    {"<", Compare<Comparison::kLess>, {""}, 1},
    {"<=", Compare<Comparison::kLessEqual>, {""}, 1},
    {"==", Compare<Comparison::kEqual>, {""}, 1},
    {">", Compare<Comparison::kGreater>, {""}, 1},
    {">=", Compare<Comparison::kGreaterEqual>, {""}, 1},
    {"boolean", Check<IsBoolean>},
    {"callable", Check<IsCallable>},
    {"defined", Check<IsDefined>},
    {"divisibleby", IsDivisibleBy, {"num"}, 1},
    {"eq", Compare<Comparison::kEqual>, {""}, 1},
    {"equalto", Compare<Comparison::kEqual>, {""}, 1},
    {"escaped", Check<IsEscaped>},
    {"even", HasParity<0>},
    {"false", Check<IsFalseConstant>},
    {"filter", IsFilter},
    {"float", Check<IsFloat>},
    {"ge", Compare<Comparison::kGreaterEqual>, {""}, 1},
    {"greaterthan", Compare<Comparison::kGreater>, {""}, 1},
    {"gt", Compare<Comparison::kGreater>, {""}, 1},
    {"in", IsIn, {"seq"}, 1},
    {"integer", Check<IsInteger>},
    {"iterable", Check<IsIterableValue>},
    {"le", Compare<Comparison::kLessEqual>, {""}, 1},
    {"lessthan", Compare<Comparison::kLess>, {""}, 1},
    {"lower", IsLowerText},
    {"lt", Compare<Comparison::kLess>, {""}, 1},
    {"mapping", Check<IsMapping>},
    {"ne", Compare<Comparison::kNotEqual>, {""}, 1},
    {"none", Check<IsNone>},
    {"number", Check<IsNumber>},
    {"odd", HasParity<1>},
    {"sameas", IsSameAs, {"other"}, 1},
    {"sequence", Check<IsSequence>},
    {"string", Check<IsString>},
    {"test", IsTest},
    {"true", Check<IsTrueConstant>},
    {"undefined", Check<IsUndefined>},
    {"upper", IsUpperText},
};

}  // namespace

const Builtin* FindTest(std::string_view name) { return FindIn(kTests, name); }

}  // namespace convene::jinja
