#include "jinja/expression_parser.h"

#include <fmt/format.h>

#include <algorithm>

#include "jinja/limits.h"
#include "jinja/syntax_walk.h"

namespace convene::jinja {

using Type = Token::Type;

class ExpressionParser::Nested {
 public:
  explicit Nested(ExpressionParser& parser) : parser_(parser) {
    if (++parser_.nesting_ > kMaxSourceNesting) {
      parser_.tokens_.Fail(fmt::format("expressions are nested deeper than {}", kMaxSourceNesting));
    }
  }
  ~Nested() { --parser_.nesting_; }

 private:
  ExpressionParser& parser_;
};

ExpressionPtr ExpressionParser::Finish(ExpressionPtr expression) {
  int depth = 0;
  ForEachChild(*expression, [&](const Expression& child) { depth = std::max(depth, child.depth); });
  expression->depth = depth + 1;
  if (expression->depth <= kMaxExpressionDepth) return expression;
  tokens_.Fail(fmt::format("an expression is nested deeper than {}", kMaxExpressionDepth),
               expression->line);
  return std::make_unique<Expression>();
}

ExpressionPtr ExpressionParser::ParseExpression() {
  const Nested nested(*this);
  return ParseConditional();
}

ExpressionPtr ExpressionParser::ParseConditional() {
  int line = tokens_.line();
  ExpressionPtr expression = ParseBinary(0);
  while (tokens_.SkipName("if")) {
    ExpressionPtr test = ParseBinary(0);
    ExpressionPtr otherwise;
    if (tokens_.SkipName("else")) otherwise = ParseExpression();
    expression = Make(line, Conditional{.test = std::move(test),
                                        .then = std::move(expression),
                                        .otherwise = std::move(otherwise)});
    line = tokens_.line();
  }
  return expression;
}

namespace {

// Binary operators by precedence, loosest first; `not`, comparisons and ~ have their own functions.
struct Level {
  Type type;
  std::vector<std::pair<std::string_view, BinaryOperator>> operators;
};
const Level& LevelAt(int level) {
  static const Level levels[] = {
      {Type::kName, {{"or", BinaryOperator::kOr}}},
      {Type::kName, {{"and", BinaryOperator::kAnd}}},
      {Type::kOperator, {{"+", BinaryOperator::kAdd}, {"-", BinaryOperator::kSubtract}}},
      {Type::kOperator,
       {{"*", BinaryOperator::kMultiply},
        {"/", BinaryOperator::kDivide},
        {"//", BinaryOperator::kFloorDivide},
        {"%", BinaryOperator::kModulo}}},
      {Type::kOperator, {{"**", BinaryOperator::kPower}}},
  };
  return levels[level];
}
constexpr int kSumLevel = 2, kProductLevel = 3, kPowerLevel = 4;

}  // namespace

ExpressionPtr ExpressionParser::ParseBinary(int level) {
  const auto parse_operand = [&]() {
    return level == kPowerLevel     ? ParseUnary(/*with_filters=*/true)
               : level == kSumLevel - 1 ? ParseNot()
           : level == kSumLevel     ? ParseConcatenation()
                                    : ParseBinary(level + 1);
  };
  int line = tokens_.line();
  ExpressionPtr left = parse_operand();
  while (true) {
    const Token& token = tokens_.current();
    const auto& operators = LevelAt(level).operators;
    const auto found = std::find_if(operators.begin(), operators.end(), [&](const auto& op) {
      return token.type == LevelAt(level).type && token.text == op.first;
    });
    if (found == operators.end()) return left;
    tokens_.Take();
    ExpressionPtr right = parse_operand();
    left = Make(line, Binary{found->second, std::move(left), std::move(right)});
    line = tokens_.line();
  }
}

ExpressionPtr ExpressionParser::ParseNot() {
  const int line = tokens_.line();
  if (!tokens_.SkipName("not")) return ParseCompare();
  const Nested nested(*this);
  return Make(line, Unary{UnaryOperator::kNot, ParseNot()});
}

ExpressionPtr ExpressionParser::ParseCompare() {
  static constexpr std::pair<std::string_view, Comparison> kOperators[] = {
      {"==", Comparison::kEqual},  {"!=", Comparison::kNotEqual},
      {"<", Comparison::kLess},    {"<=", Comparison::kLessEqual},
      {">", Comparison::kGreater}, {">=", Comparison::kGreaterEqual}};
  const int line = tokens_.line();
  CompareChain chain{.first = ParseBinary(kSumLevel), .rest = {}};
  while (true) {
    const auto* found = std::find_if(std::begin(kOperators), std::end(kOperators),
                                     [&](const auto& op) { return tokens_.AtOperator(op.first); });
    Comparison comparison;
    if (found != std::end(kOperators)) {
      comparison = found->second;
    } else if (tokens_.AtName("in")) {
      comparison = Comparison::kIn;
    } else if (tokens_.AtName("not") && tokens_.next().type == Type::kName &&
               tokens_.next().text == "in") {
      comparison = Comparison::kNotIn;
      tokens_.Take();
    } else {
      break;
    }
    tokens_.Take();
    chain.rest.emplace_back(comparison, ParseBinary(kSumLevel));
  }
  if (chain.rest.empty()) return std::move(chain.first);
  return Make(line, std::move(chain));
}

ExpressionPtr ExpressionParser::ParseConcatenation() {
  const int line = tokens_.line();
  std::vector<ExpressionPtr> parts;
  do {
    parts.push_back(ParseBinary(kProductLevel));
  } while (tokens_.SkipOperator("~"));
  if (parts.size() == 1) return std::move(parts[0]);
  return Make(line, Concatenation{std::move(parts)});
}

ExpressionPtr ExpressionParser::ParseUnary(bool with_filters) {
  const int line = tokens_.line();
  ExpressionPtr expression;
  if (tokens_.AtOperator("-") || tokens_.AtOperator("+")) {
    const Nested nested(*this);
    const auto op =
        tokens_.Take().text == "-" ? UnaryOperator::kNegative : UnaryOperator::kPositive;
    expression = Make(line, Unary{op, ParseUnary(false)});
  } else {
    expression = ParsePrimary();
  }
  expression = ParsePostfix(std::move(expression));
  return with_filters ? ParsePostfixAndFilters(std::move(expression)) : std::move(expression);
}

ExpressionPtr ExpressionParser::ParsePrimary() {
  const Token token = tokens_.current();
  switch (token.type) {
    case Type::kName:
      return ParseNamed();
    case Type::kString:
      return ParseStrings();
    case Type::kInteger:
      tokens_.Take();
      return Make(token.line, Constant{Value(token.integer)});
    case Type::kFloat:
      tokens_.Take();
      return Make(token.line, Constant{Value(token.number)});
    default:
      if (tokens_.AtOperator("(")) return ParseParentheses();
      if (tokens_.AtOperator("[")) return ParseList();
      if (tokens_.AtOperator("{")) return ParseDict();
      tokens_.Fail(fmt::format("unexpected '{}'", DescribeToken(token)));
      return std::make_unique<Expression>();
  }
}

ExpressionPtr ExpressionParser::ParseNamed() {
  const Token token = tokens_.Take();
  if (token.text == "true" || token.text == "True") return Make(token.line, Constant{Value(true)});
  if (token.text == "false" || token.text == "False") {
    return Make(token.line, Constant{Value(false)});
  }
  if (token.text == "none" || token.text == "None") return Make(token.line, Constant{None{}});
  return Make(token.line, Name{.name = token.text, .place = {}});
}

ExpressionPtr ExpressionParser::ParseStrings() {
  const int line = tokens_.line();
  std::string text;
  while (tokens_.At(Type::kString)) text += tokens_.Take().text;
  return Make(line, Constant{Value::Constant(std::move(text))});
}

ExpressionPtr ExpressionParser::ParseParentheses() {
  const int line = tokens_.line();
  tokens_.ExpectOperator("(");
  if (tokens_.SkipOperator(")")) return Make(line, TupleLiteral{});
  ExpressionPtr inside = ParseTuple();
  tokens_.ExpectOperator(")");
  return inside;
}

ExpressionPtr ExpressionParser::ParseTuple(bool with_conditional, std::string_view stop) {
  const int line = tokens_.line();
  const auto at_end = [&]() {
    return tokens_.At(Type::kVariableEnd) || tokens_.At(Type::kBlockEnd) ||
           tokens_.AtOperator(")") || (!stop.empty() && tokens_.AtName(stop));
  };
  std::vector<ExpressionPtr> elements;
  bool is_tuple = false;
  while (!at_end()) {
    elements.push_back(with_conditional ? ParseExpression() : ParseBinary(0));
    if (!tokens_.SkipOperator(",")) break;
    is_tuple = true;
  }
  if (is_tuple) return Make(line, TupleLiteral{std::move(elements)});
  if (!elements.empty()) return std::move(elements[0]);
  tokens_.Fail(fmt::format("Expected an expression, got '{}'", DescribeToken(tokens_.current())));
  return std::make_unique<Expression>();
}

ExpressionPtr ExpressionParser::ParseList() {
  const int line = tokens_.line();
  tokens_.ExpectOperator("[");
  ListLiteral list;
  while (!tokens_.failed() && !tokens_.AtOperator("]")) {
    list.elements.push_back(ParseExpression());
    if (!tokens_.AtOperator("]")) tokens_.ExpectOperator(",");
  }
  tokens_.ExpectOperator("]");
  return Make(line, std::move(list));
}

ExpressionPtr ExpressionParser::ParseDict() {
  const int line = tokens_.line();
  tokens_.ExpectOperator("{");
  DictLiteral dict;
  while (!tokens_.failed() && !tokens_.AtOperator("}")) {
    ExpressionPtr key = ParseExpression();
    tokens_.ExpectOperator(":");
    dict.entries.emplace_back(std::move(key), ParseExpression());
    if (!tokens_.AtOperator("}")) tokens_.ExpectOperator(",");
  }
  tokens_.ExpectOperator("}");
  return Make(line, std::move(dict));
}

}  // namespace convene::jinja
