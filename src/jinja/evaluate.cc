// The interpreter's half that evaluates expressions.
#include <fmt/format.h>

#include "jinja/attributes.h"
#include "jinja/builtins.h"
#include "jinja/interpreter.h"
#include "jinja/nested_evaluation.h"
#include "jinja/operators.h"
#include "jinja/repr.h"
#include "jinja/sequence.h"

namespace convene::jinja {

Value Interpreter::Evaluate(const Expression& expression) {
  const Nested nested(*this);
  if (!nested.ok) return None{};
  run_.set_line(expression.line);
  return std::visit([&](const auto& node) { return Evaluate(node, expression.line); },
                    expression.node);
}

Value Interpreter::Evaluate(const Constant& node, int) { return node.value; }

Value Interpreter::Evaluate(const Name& node, int) {
  const Value& variable = At(node.place);
  if (!variable.IsMissing()) return variable;
  return run_.NewUndefined(fmt::format("'{}' is undefined", node.name));
}

Values Interpreter::EvaluateAll(const std::vector<ExpressionPtr>& expressions) {
  Values values;
  values.reserve(expressions.size());
  for (const ExpressionPtr& expression : expressions) values.push_back(Evaluate(*expression));
  return values;
}

Value Interpreter::Evaluate(const TupleLiteral& node, int) {
  return run_.NewTuple(EvaluateAll(node.elements));
}

Value Interpreter::Evaluate(const ListLiteral& node, int) {
  return run_.NewList(EvaluateAll(node.elements));
}

Value Interpreter::Evaluate(const DictLiteral& node, int line) {
  std::vector<Dict::Entry> entries;
  entries.reserve(node.entries.size());
  for (const auto& [key, value] : node.entries) {
    Value evaluated_key = Evaluate(*key);
    entries.emplace_back(std::move(evaluated_key), Evaluate(*value));
  }
  run_.set_line(line);
  return run_.NewDict(std::move(entries));
}

Value Interpreter::Evaluate(const Unary& node, int line) {
  const Value operand = Evaluate(*node.operand);
  if (run_.failed()) return None{};
  run_.set_line(line);
  return ApplyUnary(run_, node.op, operand);
}

Value Interpreter::Evaluate(const Binary& node, int line) {
  Value left = Evaluate(*node.left);
  if (run_.failed()) return None{};
  if (node.op == BinaryOperator::kAnd) return IsTrue(left) ? Evaluate(*node.right) : left;
  if (node.op == BinaryOperator::kOr) return IsTrue(left) ? left : Evaluate(*node.right);
  const Value right = Evaluate(*node.right);
  if (run_.failed()) return None{};
  run_.set_line(line);
  return ApplyBinary(run_, node.op, left, right);
}

Value Interpreter::Evaluate(const CompareChain& node, int line) {
  Value left = Evaluate(*node.first);
  for (const auto& [comparison, operand] : node.rest) {
    Value right = Evaluate(*operand);
    if (run_.failed()) return None{};
    run_.set_line(line);
    if (!ApplyComparison(run_, comparison, left, right)) return false;
    left = std::move(right);
  }
  return true;
}

Value Interpreter::Evaluate(const Concatenation& node, int) {
  std::string text;
  for (const ExpressionPtr& part : node.parts) {
    const Value value = Evaluate(*part);
    if (run_.failed()) return None{};
    text += value.IsString() ? value.Text() : Str(run_, value);
    if (!run_.MayAllocate(text.size())) return None{};
  }
  return run_.String(std::move(text));
}

Value Interpreter::Evaluate(const Conditional& node, int line) {
  const bool is_true = IsTrue(Evaluate(*node.test));
  if (run_.failed()) return None{};
  if (is_true) return Evaluate(*node.then);
  if (node.otherwise) return Evaluate(*node.otherwise);
  return run_.NewUndefined(fmt::format(
      "the inline if-expression on line {} evaluated to false and no else section was defined.",
      line));
}

Value Interpreter::Evaluate(const AttributeOf& node, int line) {
  const Value object = Evaluate(*node.object);
  if (run_.failed()) return None{};
  run_.set_line(line);
  return GetAttribute(run_, object, node.name);
}

Value Interpreter::Evaluate(const ItemOf& node, int line) {
  const Value object = Evaluate(*node.object);
  const Value key = Evaluate(*node.key);
  if (run_.failed()) return None{};
  run_.set_line(line);
  return GetItem(run_, object, key);
}

Value Interpreter::Evaluate(const Slice& node, int line) {
  const auto part = [&](const ExpressionPtr& expression) {
    return expression ? Evaluate(*expression) : Value(None{});
  };
  const Value object = Evaluate(*node.object);
  const Value start = part(node.start), stop = part(node.stop), step = part(node.step);
  if (run_.failed()) return None{};
  run_.set_line(line);
  return TakeSlice(run_, object, start, stop, step);
}

Value Interpreter::Evaluate(const Call& node, int line) {
  return EvaluateCall(node, line, /*caller=*/nullptr);
}

Value Interpreter::Evaluate(const ApplyFilter& node, int line) {
  const Value input = node.input ? Evaluate(*node.input) : block_text_;
  const Arguments arguments = EvaluateArguments(node.arguments);
  if (run_.failed()) return None{};
  run_.set_line(line);
  const Builtin* filter = FindFilter(node.name);
  if (filter == nullptr) return run_.Fail(DescribeMissingFilter(node.name));
  return filter->Call(run_, input, arguments);
}

Value Interpreter::Evaluate(const ApplyTest& node, int line) {
  const Value input = Evaluate(*node.input);
  const Arguments arguments = EvaluateArguments(node.arguments);
  if (run_.failed()) return None{};
  run_.set_line(line);
  const Builtin* test = FindTest(node.name);
  if (test == nullptr) return run_.Fail(DescribeMissingTest(node.name));
  return IsTrue(test->Call(run_, input, arguments));
}

}  // namespace convene::jinja
