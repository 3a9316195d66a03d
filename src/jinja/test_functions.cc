#include "jinja/test_functions.h"

#include <fmt/format.h>

#include <algorithm>

#include "jinja/arguments.h"
#include "jinja/compare.h"
#include "jinja/filters.h"
#include "jinja/methods.h"
#include "jinja/operators.h"
#include "jinja/repr.h"
#include "jinja/sequence.h"

namespace convene::jinja {
namespace {

// A test without arguments that only looks at the value.
template <bool (*IsSo)(const Value&)>
bool Check(Run& run, const Value& input, const Arguments& arguments) {
  return BindNothing(run, "test", arguments) && IsSo(input);
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
  switch (value.kind()) {
    case Kind::kUndefined:
    case Kind::kLoop:
    case Kind::kMacro:
    case Kind::kJoiner:
    case Kind::kFunction:
    case Kind::kMethod:
      return true;
    default:
      return false;
  }
}

template <Comparison comparison>
bool Compare(Run& run, const Value& input, const Arguments& arguments) {
  Value other;
  return Bind(run, "test", arguments, {""}, 1, &other) &&
         ApplyComparison(run, comparison, input, other);
}

bool IsIn(Run& run, const Value& input, const Arguments& arguments) {
  Value container;
  return Bind(run, "in", arguments, {"seq"}, 1, &container) && Contains(run, container, input);
}

bool HasRemainder(Run& run, const Value& input, const Value& divisor, int64_t remainder) {
  return Equal(run, ApplyBinary(run, BinaryOperator::kModulo, input, divisor), remainder);
}

template <int64_t remainder>
bool HasParity(Run& run, const Value& input, const Arguments& arguments) {
  return BindNothing(run, "test", arguments) && HasRemainder(run, input, int64_t{2}, remainder);
}

bool IsDivisibleBy(Run& run, const Value& input, const Arguments& arguments) {
  Value divisor;
  return Bind(run, "divisibleby", arguments, {"num"}, 1, &divisor) &&
         HasRemainder(run, input, divisor, 0);
}

bool AskText(Run& run, std::string_view method, const Value& input, const Arguments& arguments) {
  if (!BindNothing(run, "test", arguments)) return false;
  const Value text = run.String(Str(run, input));
  return IsTrue(FindMethod(text, method)->call(run, text, {}));
}
bool IsLowerText(Run& run, const Value& input, const Arguments& arguments) {
  return AskText(run, "islower", input, arguments);
}
bool IsUpperText(Run& run, const Value& input, const Arguments& arguments) {
  return AskText(run, "isupper", input, arguments);
}

// Python's `is`, where the answer does not hang on how Python stores numbers and texts.
bool IsSameAs(Run& run, const Value& input, const Arguments& arguments) {
  Value other;
  if (!Bind(run, "sameas", arguments, {"other"}, 1, &other)) return false;
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
      run.Fail(fmt::format("the test 'sameas' is not supported for values of type '{}'",
                           TypeName(input)));
      return false;
  }
}

bool IsFilter(Run& run, const Value& input, const Arguments& arguments) {
  return BindNothing(run, "filter", arguments) && input.IsString() && IsFilterName(input.Text());
}

bool IsTest(Run& run, const Value& input, const Arguments& arguments) {
  return BindNothing(run, "test", arguments) && input.IsString() &&
         FindTest(input.Text()) != nullptr;
}

bool IsIterableValue(const Value& value) { return IsIterable(value); }

constexpr TestEntry kTests[] = {
    {"!=", Compare<Comparison::kNotEqual>},
    {"<", Compare<Comparison::kLess>},
    {"<=", Compare<Comparison::kLessEqual>},
    {"==", Compare<Comparison::kEqual>},
    {">", Compare<Comparison::kGreater>},
    {">=", Compare<Comparison::kGreaterEqual>},
    {"boolean", Check<IsBoolean>},
    {"callable", Check<IsCallable>},
    {"defined", Check<IsDefined>},
    {"divisibleby", IsDivisibleBy},
    {"eq", Compare<Comparison::kEqual>},
    {"equalto", Compare<Comparison::kEqual>},
    {"escaped", Check<IsEscaped>},
    {"even", HasParity<0>},
    {"false", Check<IsFalseConstant>},
    {"filter", IsFilter},
    {"float", Check<IsFloat>},
    {"ge", Compare<Comparison::kGreaterEqual>},
    {"greaterthan", Compare<Comparison::kGreater>},
    {"gt", Compare<Comparison::kGreater>},
    {"in", IsIn},
    {"integer", Check<IsInteger>},
    {"iterable", Check<IsIterableValue>},
    {"le", Compare<Comparison::kLessEqual>},
    {"lessthan", Compare<Comparison::kLess>},
    {"lower", IsLowerText},
    {"lt", Compare<Comparison::kLess>},
    {"mapping", Check<IsMapping>},
    {"ne", Compare<Comparison::kNotEqual>},
    {"none", Check<IsNone>},
    {"number", Check<IsNumber>},
    {"odd", HasParity<1>},
    {"sameas", IsSameAs},
    {"sequence", Check<IsSequence>},
    {"string", Check<IsString>},
    {"test", IsTest},
    {"true", Check<IsTrueConstant>},
    {"undefined", Check<IsUndefined>},
    {"upper", IsUpperText},
};

}  // namespace

const TestEntry* FindTest(std::string_view name) {
  const auto* found = std::find_if(std::begin(kTests), std::end(kTests),
                                   [&](const TestEntry& entry) { return entry.name == name; });
  return found == std::end(kTests) ? nullptr : found;
}

std::string DescribeMissingTest(std::string_view name) {
  return fmt::format("No test named '{}'.", name);
}

}  // namespace convene::jinja
