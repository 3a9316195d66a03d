// ExpressionParser: the expressions of a template, by precedence as Jinja has it (** binds to the
// left and below unary minus; ~ binds between + and *). Statements are parser.cc's.
#pragma once

#include <string>

#include "jinja/syntax.h"
#include "jinja/token_stream.h"

namespace convene::jinja {

class ExpressionParser {
 public:
  explicit ExpressionParser(TokenStream& tokens) : tokens_(tokens) {}

  // After a failure, all of these return some expression that nobody may evaluate.
  ExpressionPtr ParseExpression();
  // An expression, or a tuple without parentheses; `stop` is a name that may follow a last comma.
  ExpressionPtr ParseTuple(bool with_conditional = true, std::string_view stop = "");
  // One or more `| filter`, applied to `input` (null: to a captured block).
  ExpressionPtr ParseFilters(ExpressionPtr input);
  // The first filter of a filter block, which has no `|`, and those after it.
  ExpressionPtr ParseFilterBlockHead();
  ExpressionPtr ParseCallOnly();

 private:
  // Counts nesting, so that no input can overflow the stack. A failure ends the tokens, and so
  // every recursion of the parser.
  class Nested;

  ExpressionPtr ParseConditional();
  ExpressionPtr ParseBinary(int level);
  ExpressionPtr ParseNot();
  ExpressionPtr ParseCompare();
  ExpressionPtr ParseConcatenation();
  ExpressionPtr ParseUnary(bool with_filters);
  ExpressionPtr ParsePrimary();
  ExpressionPtr ParseNamed();
  ExpressionPtr ParseStrings();
  ExpressionPtr ParseParentheses();
  ExpressionPtr ParseList();
  ExpressionPtr ParseDict();
  ExpressionPtr ParsePostfix(ExpressionPtr object);
  ExpressionPtr ParsePostfixAndFilters(ExpressionPtr object);
  ExpressionPtr ParseAttribute(ExpressionPtr object);
  ExpressionPtr ParseSubscript(ExpressionPtr object);
  ExpressionPtr ParseCall(ExpressionPtr callee);
  ExpressionPtr ParseFilter(ExpressionPtr input);
  ExpressionPtr ParseTest(ExpressionPtr input);
  CallArguments ParseArguments();
  std::string ParseDottedName();

  template <typename Node>
  ExpressionPtr Make(int line, Node node) {
    return Finish(std::make_unique<Expression>(
        Expression{.line = line, .depth = 1, .node = std::move(node)}));
  }
  // Sets the depth and checks it.
  ExpressionPtr Finish(ExpressionPtr expression);

  TokenStream& tokens_;
  int nesting_ = 0;
};

}  // namespace convene::jinja
