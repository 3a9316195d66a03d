// Visiting the expressions directly below an expression. It does not descend by itself.
#pragma once

#include <type_traits>

#include "jinja/syntax.h"

namespace convene::jinja {

template <typename F>
void ForEachArgument(const CallArguments& arguments, F&& visit) {
  for (const ExpressionPtr& argument : arguments.positional) visit(*argument);
  for (const auto& [name, argument] : arguments.named) visit(*argument);
  if (arguments.more_positional) visit(*arguments.more_positional);
  if (arguments.more_named) visit(*arguments.more_named);
}

// Calls visit(Expression&), in the order of the source except that a condition comes first.
template <typename F>
void ForEachChild(const Expression& expression, F&& visit) {
  const auto visit_all = [&](const auto&... children) {
    ((children ? visit(*children) : void()), ...);
  };
  std::visit(
      [&](const auto& node) {
        using Node = std::decay_t<decltype(node)>;
        if constexpr (std::is_same_v<Node, TupleLiteral> || std::is_same_v<Node, ListLiteral>) {
          for (const ExpressionPtr& element : node.elements) visit(*element);
        } else if constexpr (std::is_same_v<Node, DictLiteral>) {
          for (const auto& [key, value] : node.entries) visit_all(key, value);
        } else if constexpr (std::is_same_v<Node, Unary>) {
          visit_all(node.operand);
        } else if constexpr (std::is_same_v<Node, Binary>) {
          visit_all(node.left, node.right);
        } else if constexpr (std::is_same_v<Node, CompareChain>) {
          visit_all(node.first);
          for (const auto& [op, operand] : node.rest) visit_all(operand);
        } else if constexpr (std::is_same_v<Node, Concatenation>) {
          for (const ExpressionPtr& part : node.parts) visit(*part);
        } else if constexpr (std::is_same_v<Node, Conditional>) {
          visit_all(node.test, node.then, node.otherwise);
        } else if constexpr (std::is_same_v<Node, AttributeOf>) {
          visit_all(node.object);
        } else if constexpr (std::is_same_v<Node, ItemOf>) {
          visit_all(node.object, node.key);
        } else if constexpr (std::is_same_v<Node, Slice>) {
          visit_all(node.object, node.start, node.stop, node.step);
        } else if constexpr (std::is_same_v<Node, Call>) {
          visit_all(node.callee);
          ForEachArgument(node.arguments, visit);
        } else if constexpr (std::is_same_v<Node, ApplyFilter> || std::is_same_v<Node, ApplyTest>) {
          visit_all(node.input);
          ForEachArgument(node.arguments, visit);
        } else {
          static_assert(std::is_same_v<Node, Constant> || std::is_same_v<Node, Name>);
        }
      },
      expression.node);
}

}  // namespace convene::jinja
