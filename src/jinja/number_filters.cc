// Filters that make numbers, and `default`, which makes whatever it is given.
#include <fmt/format.h>

#include <cmath>
#include <cstdio>

#include "jinja/arguments.h"
#include "jinja/builtins.h"
#include "jinja/number_text.h"

namespace convene::jinja {
namespace {

Value Default(Run& run, const Value& input, Bound& bound) {
  const bool is_replaced = input.IsUndefined() || (IsTrueOr(bound[1], false) && !IsTrue(input));
  if (!is_replaced) return input;
  return bound[0].IsMissing() ? run.String("") : bound[0];
}

Value Absolute(Run& run, const Value& input) {
  if (input.Is(Kind::kFloat)) return std::fabs(input.Float());
  if (!input.IsInteger()) {
    return run.Fail(fmt::format("bad operand type for abs(): '{}'", TypeName(input)));
  }
  int64_t result = input.Int();
  if (result < 0 && __builtin_sub_overflow(int64_t{0}, input.Int(), &result)) {
    return run.Fail("an integer exceeds 64 bits, which is not supported");
  }
  return result;
}

// The integer next to zero; missing for what has none.
Value Truncate(Run& run, double value) {
  if (!std::isfinite(value)) return {};
  const double whole = std::trunc(value);
  constexpr double kTwoTo63 = 9223372036854775808.0;
  if (whole < -kTwoTo63 || whole >= kTwoTo63) {
    return run.Fail(fmt::format("the integer {} exceeds 64 bits, which is not supported", whole));
  }
  return static_cast<int64_t>(whole);
}

Value AsInteger(Run& run, const Value& input, Bound& bound) {
  const Value otherwise = bound[0].IsMissing() ? Value(int64_t{0}) : bound[0];
  const int64_t base = IntegerOr(run, bound[1], 10);
  if (run.failed()) return None{};
  if (input.IsUndefined()) return run.Fail(input.AsUndefined().message);
  if (input.IsInteger()) return input.Int();
  if (input.Is(Kind::kFloat)) {
    if (std::isinf(input.Float())) return run.Fail("cannot convert float infinity to integer");
    const Value whole = Truncate(run, input.Float());
    return whole.IsMissing() ? otherwise : whole;
  }
  if (!input.IsString()) return otherwise;
  if (!run.SpendText(input.Text().size())) return None{};
  if (const auto parsed = ParseInteger(run, input.Text(), base)) return *parsed;
  if (run.failed()) return None{};
  const auto number = ParseFloat(input.Text());
  const Value whole = number ? Truncate(run, *number) : Value();
  return whole.IsMissing() ? otherwise : whole;
}

Value AsFloat(Run& run, const Value& input, Bound& bound) {
  if (bound[0].IsMissing()) bound[0] = 0.0;
  if (input.IsUndefined()) return run.Fail(input.AsUndefined().message);
  if (input.IsNumber()) return input.Float();
  if (!input.IsString() || !run.SpendText(input.Text().size())) return bound[0];
  const auto parsed = ParseFloat(input.Text());
  return parsed ? Value(*parsed) : bound[0];
}

// Python's round(): half to even, decided on the exact value of the double.
Value RoundHalfEven(Run& run, const Value& input, int64_t precision) {
  if (precision < 0) {
    return run.Fail(fmt::format("round with a precision of {} is not supported", precision));
  }
  if (input.IsInteger()) return input.Int();
  constexpr int64_t kMostDecimals = 323;  // of a double that is not zero
  if (!std::isfinite(input.Float()) || precision > kMostDecimals) return input;
  char buffer[700];
  std::snprintf(buffer, sizeof(buffer), "%.*f", static_cast<int>(precision), input.Float());
  const bool is_negative = buffer[0] == '-';
  const double magnitude = ParseFloat(is_negative ? buffer + 1 : buffer).value_or(0);
  return is_negative ? -magnitude : magnitude;
}

Value Round(Run& run, const Value& input, Bound& bound) {
  const std::string* method = bound[1].IsMissing() ? nullptr : ToText(run, bound[1]);
  const std::string name = method == nullptr ? "common" : *method;
  if (name != "common" && name != "ceil" && name != "floor") {
    return run.Fail("method must be common, ceil or floor");
  }
  if (!input.IsNumber()) {
    return run.Fail(fmt::format("type {} doesn't define __round__ method", TypeName(input)));
  }
  if (bound[0].IsNone()) return run.Fail("round with a precision of none is not supported");
  const int64_t precision = IntegerOr(run, bound[0], 0);
  if (run.failed()) return None{};
  if (name == "common") return RoundHalfEven(run, input, precision);
  const double scale = std::pow(10.0, static_cast<double>(precision));
  const double scaled = input.Float() * scale;
  if (!std::isfinite(scaled)) return run.Fail("cannot round a number that is not finite");
  return (name == "ceil" ? std::ceil(scaled) : std::floor(scaled)) / scale;
}

constexpr Builtin kNumberFilters[] = {
    {"abs", Absolute},
    {"d", Default, {"default_value", "boolean"}},
    {"default", Default, {"default_value", "boolean"}},
    {"float", AsFloat, {"default"}},
    {"int", AsInteger, {"default", "base"}},
    {"round", Round, {"precision", "method"}},
};

}  // namespace

std::span<const Builtin> NumberFilters() { return kNumberFilters; }

}  // namespace convene::jinja
