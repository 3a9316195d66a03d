// The half of ExpressionParser that starts behind a value: subscripts, calls, filters and tests.
#include <fmt/format.h>

#include <algorithm>

#include "jinja/expression_parser.h"

namespace convene::jinja {

using Type = Token::Type;

ExpressionPtr ExpressionParser::ParsePostfix(ExpressionPtr object) {
  while (true) {
    if (tokens_.AtOperator(".")) {
      object = ParseAttribute(std::move(object));
    } else if (tokens_.AtOperator("[")) {
      object = ParseSubscript(std::move(object));
    } else if (tokens_.AtOperator("(")) {
      object = ParseCall(std::move(object));
    } else {
      return object;
    }
  }
}

ExpressionPtr ExpressionParser::ParsePostfixAndFilters(ExpressionPtr object) {
  while (true) {
    if (tokens_.AtOperator("|")) {
      tokens_.Take();
      object = ParseFilter(std::move(object));
    } else if (tokens_.AtName("is")) {
      object = ParseTest(std::move(object));
    } else if (tokens_.AtOperator("(")) {
      object = ParseCall(std::move(object));
    } else {
      return object;
    }
  }
}

ExpressionPtr ExpressionParser::ParseFilters(ExpressionPtr input) {
  while (tokens_.SkipOperator("|")) input = ParseFilter(std::move(input));
  return input;
}

ExpressionPtr ExpressionParser::ParseFilterBlockHead() {
  return ParseFilters(ParseFilter(nullptr));
}

ExpressionPtr ExpressionParser::ParseAttribute(ExpressionPtr object) {
  const int line = tokens_.line();
  tokens_.ExpectOperator(".");
  const Token token = tokens_.current();
  if (token.type == Type::kInteger) {
    tokens_.Take();
    ExpressionPtr index = Make(line, Constant{Value(token.integer)});
    return Make(line, ItemOf{std::move(object), std::move(index)});
  }
  tokens_.Expect(Type::kName, "name or number");
  return Make(line, AttributeOf{std::move(object), token.text});
}

ExpressionPtr ExpressionParser::ParseSubscript(ExpressionPtr object) {
  const int line = tokens_.line();
  tokens_.ExpectOperator("[");
  // start : stop : step, of which only the colons count.
  ExpressionPtr parts[3];
  size_t num_colons = 0;
  std::vector<ExpressionPtr> keys;
  while (!tokens_.failed() && !tokens_.AtOperator("]")) {
    if (tokens_.AtOperator(":") && num_colons < 2) {
      tokens_.Take();
      ++num_colons;
    } else if (tokens_.AtOperator(",")) {
      if (num_colons > 0) tokens_.Fail("a slice within a tuple of subscripts is not supported");
      tokens_.Take();
      keys.push_back(std::move(parts[0]));
      if (keys.back() == nullptr) tokens_.Fail("unexpected ','");
    } else {
      if (parts[num_colons] != nullptr) {
        tokens_.Fail(fmt::format("expected token ',', got '{}'", DescribeToken(tokens_.current())));
      }
      parts[num_colons] = ParseExpression();
    }
  }
  tokens_.ExpectOperator("]");
  if (tokens_.failed()) return std::make_unique<Expression>();
  if (num_colons > 0) {
    if (!keys.empty()) tokens_.Fail("a slice within a tuple of subscripts is not supported", line);
    return Make(line, Slice{.object = std::move(object),
                            .start = std::move(parts[0]),
                            .stop = std::move(parts[1]),
                            .step = std::move(parts[2])});
  }
  if (keys.empty() && parts[0] != nullptr) {
    return Make(line, ItemOf{std::move(object), std::move(parts[0])});
  }
  if (parts[0] != nullptr) keys.push_back(std::move(parts[0]));
  ExpressionPtr tuple = Make(line, TupleLiteral{std::move(keys)});
  return Make(line, ItemOf{std::move(object), std::move(tuple)});
}

ExpressionPtr ExpressionParser::ParseCall(ExpressionPtr callee) {
  const int line = tokens_.line();
  CallArguments arguments = ParseArguments();
  return Make(line, Call{std::move(callee), std::move(arguments)});
}

ExpressionPtr ExpressionParser::ParseCallOnly() {
  const int line = tokens_.line();
  ExpressionPtr expression = ParseExpression();
  if (!std::holds_alternative<Call>(expression->node)) tokens_.Fail("expected call", line);
  return expression;
}

CallArguments ExpressionParser::ParseArguments() {
  const int line = tokens_.line();
  CallArguments arguments;
  tokens_.ExpectOperator("(");
  while (!tokens_.failed() && !tokens_.AtOperator(")")) {
    const bool after_stars = arguments.more_positional || arguments.more_named;
    bool is_valid = true;
    if (tokens_.SkipOperator("*")) {
      is_valid = !after_stars;
      arguments.more_positional = ParseExpression();
    } else if (tokens_.SkipOperator("**")) {
      is_valid = arguments.more_named == nullptr;
      arguments.more_named = ParseExpression();
    } else if (tokens_.At(Type::kName) && tokens_.next().type == Type::kOperator &&
               tokens_.next().text == "=") {
      const std::string name = tokens_.Take().text;
      tokens_.Take();
      is_valid = arguments.more_named == nullptr &&
                 std::none_of(arguments.named.begin(), arguments.named.end(),
                              [&](const auto& other) { return other.first == name; });
      arguments.named.emplace_back(name, ParseExpression());
    } else {
      is_valid = !after_stars && arguments.named.empty();
      arguments.positional.push_back(ParseExpression());
    }
    if (!is_valid) tokens_.Fail("invalid syntax for function call expression", line);
    if (!tokens_.AtOperator(")")) tokens_.ExpectOperator(",");
  }
  tokens_.ExpectOperator(")");
  return arguments;
}

std::string ExpressionParser::ParseDottedName() {
  std::string name = tokens_.Expect(Type::kName, "a name").text;
  while (tokens_.SkipOperator(".")) name += "." + tokens_.Expect(Type::kName, "a name").text;
  return name;
}

ExpressionPtr ExpressionParser::ParseFilter(ExpressionPtr input) {
  const int line = tokens_.line();
  ApplyFilter filter{.input = std::move(input), .name = ParseDottedName(), .arguments = {}};
  if (tokens_.AtOperator("(")) filter.arguments = ParseArguments();
  return Make(line, std::move(filter));
}

ExpressionPtr ExpressionParser::ParseTest(ExpressionPtr input) {
  const int line = tokens_.line();
  tokens_.ExpectName("is");
  const bool is_negated = tokens_.SkipName("not");
  ApplyTest test{.input = std::move(input), .name = ParseDottedName(), .arguments = {}};
  const bool at_value = tokens_.At(Type::kName) || tokens_.At(Type::kString) ||
                        tokens_.At(Type::kInteger) || tokens_.At(Type::kFloat) ||
                        tokens_.AtOperator("[") || tokens_.AtOperator("{");
  if (tokens_.AtOperator("(")) {
    test.arguments = ParseArguments();
  } else if (at_value && !tokens_.AtName("else") && !tokens_.AtName("or") &&
             !tokens_.AtName("and")) {
    if (tokens_.AtName("is")) tokens_.Fail("You cannot chain multiple tests with is");
    test.arguments.positional.push_back(ParsePostfix(ParsePrimary()));
  }
  ExpressionPtr expression = Make(line, std::move(test));
  return is_negated ? Make(line, Unary{UnaryOperator::kNot, std::move(expression)})
                    : std::move(expression);
}

}  // namespace convene::jinja
