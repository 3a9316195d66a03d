// The operators of expressions on values, as Python has them. `and`, `or` and comparisons, which do
// not always evaluate their operands, are the interpreter's.
#pragma once

#include "jinja/run.h"
#include "jinja/syntax.h"
#include "jinja/value.h"

namespace convene::jinja {

// Precondition: op is neither kAnd nor kOr.
Value ApplyBinary(Run& run, BinaryOperator op, const Value& a, const Value& b);
Value ApplyUnary(Run& run, UnaryOperator op, const Value& operand);
bool ApplyComparison(Run& run, Comparison comparison, const Value& a, const Value& b);

}  // namespace convene::jinja
