// The operators of expressions on values, as Python has them. `and`, `or` and comparisons, which do
// not always evaluate their operands, are the interpreter's.
#pragma once

#include "text/jinja/run.h"
#include "text/jinja/syntax.h"
#include "text/jinja/value.h"

namespace convene::text::jinja {

// Precondition: op is neither kAnd nor kOr.
Value ApplyBinary(Run& run, BinaryOperator op, const Value& a, const Value& b);
Value ApplyUnary(Run& run, UnaryOperator op, const Value& operand);
bool ApplyComparison(Run& run, Comparison comparison, const Value& a, const Value& b);

}  // namespace convene::text::jinja
