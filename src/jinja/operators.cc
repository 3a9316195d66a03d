#include "jinja/operators.h"

#include <fmt/format.h>

#include <cmath>

#include "jinja/compare.h"
#include "jinja/escape.h"
#include "jinja/percent_format.h"
#include "jinja/sequence.h"

namespace convene::jinja {
namespace {

// Of those that fail on types, which `and` and `or` never do.
constexpr std::string_view kSymbols[] = {"+", "-", "*", "/", "//", "%", "** or pow()"};

Value FailTypes(Run& run, BinaryOperator op, const Value& a, const Value& b) {
  for (const Value* operand : {&a, &b}) {
    if (operand->IsUndefined()) return run.Fail(operand->AsUndefined().message);
  }
  return run.Fail(fmt::format("unsupported operand type(s) for {}: '{}' and '{}'",
                              kSymbols[static_cast<size_t>(op)], TypeName(a), TypeName(b)));
}

Value FailOverflow(Run& run) {
  return run.Fail("the result of an integer operation exceeds 64 bits, which is not supported");
}

Value PowerOfIntegers(Run& run, int64_t base, int64_t exponent) {
  if (exponent < 0) {
    if (base == 0) return run.Fail("0.0 cannot be raised to a negative power");
    return std::pow(static_cast<double>(base), static_cast<double>(exponent));
  }
  int64_t result = 1;
  while (exponent > 0) {
    if ((exponent & 1) != 0 && __builtin_mul_overflow(result, base, &result)) {
      return FailOverflow(run);
    }
    exponent >>= 1;
    if (exponent > 0 && __builtin_mul_overflow(base, base, &base)) return FailOverflow(run);
  }
  return result;
}

// The quotient rounded down; -1 // 2 is -1. Precondition: b is not 0, and not -1 for the lowest a.
int64_t FloorDivide(int64_t a, int64_t b) {
  const int64_t quotient = a / b;
  return a % b != 0 && (a < 0) != (b < 0) ? quotient - 1 : quotient;
}

Value OnIntegers(Run& run, BinaryOperator op, int64_t a, int64_t b) {
  int64_t result = 0;
  bool overflows = false;
  switch (op) {
    case BinaryOperator::kAdd:
      overflows = __builtin_add_overflow(a, b, &result);
      break;
    case BinaryOperator::kSubtract:
      overflows = __builtin_sub_overflow(a, b, &result);
      break;
    case BinaryOperator::kMultiply:
      overflows = __builtin_mul_overflow(a, b, &result);
      break;
    case BinaryOperator::kDivide:
      if (b == 0) return run.Fail("division by zero");
      return static_cast<double>(static_cast<long double>(a) / static_cast<long double>(b));
    case BinaryOperator::kFloorDivide:
    case BinaryOperator::kModulo:
      if (b == 0) return run.Fail("integer division or modulo by zero");
      if (b == -1) {  // the processor traps on lowest / -1
        if (op == BinaryOperator::kModulo) return int64_t{0};
        overflows = __builtin_sub_overflow(int64_t{0}, a, &result);
        break;
      }
      result = op == BinaryOperator::kModulo ? a - b * FloorDivide(a, b) : FloorDivide(a, b);
      break;
    default:
      return PowerOfIntegers(run, a, b);
  }
  if (overflows) return FailOverflow(run);
  return result;
}

// Python's float divmod: the remainder has the sign of the divisor.
std::pair<double, double> DivideFloats(double a, double b) {
  double remainder = std::fmod(a, b);
  double quotient = (a - remainder) / b;
  if (remainder != 0 && (b < 0) != (remainder < 0)) {
    remainder += b;
    quotient -= 1;
  } else if (remainder == 0) {
    remainder = std::copysign(0.0, b);
  }
  if (quotient == 0) return {std::copysign(0.0, a / b), remainder};
  double floored = std::floor(quotient);
  if (quotient - floored > 0.5) floored += 1;
  return {floored, remainder};
}

Value PowerOfFloats(Run& run, double a, double b) {
  if (a == 0 && b < 0) return run.Fail("0.0 cannot be raised to a negative power");
  if (a < 0 && std::isfinite(a) && std::isfinite(b) && b != std::floor(b)) {
    return run.Fail("complex numbers are not supported");
  }
  const double result = std::pow(a, b);
  if (std::isinf(result) && std::isfinite(a) && std::isfinite(b)) {
    return run.Fail("the result of ** is too large");
  }
  return result;
}

Value OnFloats(Run& run, BinaryOperator op, double a, double b) {
  switch (op) {
    case BinaryOperator::kAdd:
      return a + b;
    case BinaryOperator::kSubtract:
      return a - b;
    case BinaryOperator::kMultiply:
      return a * b;
    case BinaryOperator::kDivide:
      if (b == 0) return run.Fail("float division by zero");
      return a / b;
    case BinaryOperator::kFloorDivide:
      if (b == 0) return run.Fail("float floor division by zero");
      return DivideFloats(a, b).first;
    case BinaryOperator::kModulo:
      if (b == 0) return run.Fail("float modulo");
      return DivideFloats(a, b).second;
    default:
      return PowerOfFloats(run, a, b);
  }
}

Value Concatenate(Run& run, const Value& a, const Value& b) {
  const size_t num_elements = a.Elements().size() + b.Elements().size();
  if (!run.MayAllocate(num_elements * sizeof(Value))) return None{};
  Values elements;
  elements.reserve(num_elements);
  elements.insert(elements.end(), a.Elements().begin(), a.Elements().end());
  elements.insert(elements.end(), b.Elements().begin(), b.Elements().end());
  return a.Is(Kind::kList) ? run.NewList(std::move(elements)) : run.NewTuple(std::move(elements));
}

Value Repeat(Run& run, const Value& value, int64_t times) {
  const auto count = static_cast<size_t>(std::max<int64_t>(times, 0));
  const size_t size = value.IsString() ? value.Text().size() : value.Elements().size();
  size_t total = 0, bytes = 0;
  if (__builtin_mul_overflow(size, count, &total) ||
      __builtin_mul_overflow(total, value.IsString() ? 1 : sizeof(Value), &bytes)) {
    bytes = SIZE_MAX;
  }
  if (!run.MayAllocate(bytes) || !run.Spend(1 + bytes / sizeof(Value))) return None{};
  if (value.IsString()) {
    std::string text;
    text.reserve(total);
    for (size_t i = 0; size > 0 && i < count; ++i) text += value.Text();
    return run.String(std::move(text), value.String().safe);
  }
  Values elements;
  elements.reserve(total);
  for (size_t i = 0; size > 0 && i < count; ++i) {
    elements.insert(elements.end(), value.Elements().begin(), value.Elements().end());
  }
  return value.Is(Kind::kList) ? run.NewList(std::move(elements))
                               : run.NewTuple(std::move(elements));
}

bool IsRepeatable(const Value& value) { return value.IsString() || value.HasElements(); }

}  // namespace

Value ApplyBinary(Run& run, BinaryOperator op, const Value& a, const Value& b) {
  if (a.IsInteger() && b.IsInteger()) return OnIntegers(run, op, a.Int(), b.Int());
  if (a.IsNumber() && b.IsNumber()) return OnFloats(run, op, a.Float(), b.Float());
  if (op == BinaryOperator::kAdd) {
    if (a.IsString() && b.IsString()) return JoinTexts(run, a, b);
    if (a.HasElements() && a.kind() == b.kind()) return Concatenate(run, a, b);
  } else if (op == BinaryOperator::kMultiply) {
    if (IsRepeatable(a) && b.IsInteger()) return Repeat(run, a, b.Int());
    if (a.IsInteger() && IsRepeatable(b)) return Repeat(run, b, a.Int());
  } else if (op == BinaryOperator::kModulo && a.IsString()) {
    return PercentFormat(run, a, b);
  }
  return FailTypes(run, op, a, b);
}

Value ApplyUnary(Run& run, UnaryOperator op, const Value& operand) {
  if (op == UnaryOperator::kNot) return !IsTrue(operand);
  if (operand.IsUndefined()) return run.Fail(operand.AsUndefined().message);
  if (!operand.IsNumber()) {
    return run.Fail(fmt::format("bad operand type for unary {}: '{}'",
                                op == UnaryOperator::kNegative ? '-' : '+', TypeName(operand)));
  }
  if (operand.IsInteger()) {
    return OnIntegers(
        run, op == UnaryOperator::kNegative ? BinaryOperator::kSubtract : BinaryOperator::kAdd, 0,
        operand.Int());
  }
  return op == UnaryOperator::kNegative ? -operand.Float() : operand.Float();
}

bool ApplyComparison(Run& run, Comparison comparison, const Value& a, const Value& b) {
  switch (comparison) {
    case Comparison::kEqual:
      return Equal(run, a, b);
    case Comparison::kNotEqual:
      return !Equal(run, a, b);
    case Comparison::kLess:
      return Less(run, a, b);
    case Comparison::kGreater:
      return Less(run, b, a);
    case Comparison::kLessEqual:
    case Comparison::kGreaterEqual: {
      const Value& low = comparison == Comparison::kLessEqual ? a : b;
      const Value& high = comparison == Comparison::kLessEqual ? b : a;
      if (low.IsNumber() && high.IsNumber()) {
        const int order = CompareNumbers(low, high);
        return order == -1 || order == 0;  // never with NaN
      }
      // Both ways fail for values without an order; equal ones have none to be asked for.
      return !Less(run, high, low) && !run.failed();
    }
    case Comparison::kIn:
      return Contains(run, b, a);
    case Comparison::kNotIn:
      return !Contains(run, b, a);
  }
  return false;
}

}  // namespace convene::jinja
