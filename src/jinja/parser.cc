#include "jinja/parser.h"

#include <fmt/format.h>

#include <algorithm>
#include <initializer_list>

#include "jinja/expression_parser.h"
#include "jinja/limits.h"
#include "jinja/token_stream.h"

namespace convene::jinja {
namespace {

using Type = Token::Type;
using EndTags = std::initializer_list<std::string_view>;

// Tags of Jinja that no chat template can use, since there is one template and no escaping.
constexpr std::string_view kUnsupportedTags[] = {"block",  "extends", "include",
                                                 "import", "from",    "autoescape"};

class Parser {
 public:
  explicit Parser(TokenStream& tokens) : tokens_(tokens), expressions_(tokens) {}

  Template Parse() {
    Template result;
    result.body = ParseBlock({});
    return result;
  }

 private:
  // Statements up to (not including) the first of the end tags, or the end of the template.
  Block ParseBlock(EndTags end_tags) {
    Block block;
    if (++nesting_ > kMaxSourceNesting) {
      tokens_.Fail(fmt::format("statements are nested deeper than {}", kMaxSourceNesting));
    }
    while (!tokens_.At(Type::kEnd)) {
      const int line = tokens_.line();
      if (tokens_.At(Type::kData)) {
        block.push_back({.line = line, .node = OutputText{tokens_.Take().text}});
      } else if (tokens_.At(Type::kVariableBegin)) {
        tokens_.Take();
        OutputExpressions output;
        output.expressions.push_back(expressions_.ParseTuple());
        tokens_.Expect(Type::kVariableEnd, "token 'end of print statement'");
        block.push_back({.line = line, .node = std::move(output)});
      } else {
        tokens_.Expect(Type::kBlockBegin, "a tag");
        if (AtAny(end_tags)) {
          --nesting_;
          return block;
        }
        block.push_back({.line = line, .node = ParseStatement(end_tags)});
        tokens_.Expect(Type::kBlockEnd, "token 'end of statement block'");
      }
    }
    if (end_tags.size() > 0) tokens_.Fail("Unexpected end of template. " + LookingFor(end_tags));
    --nesting_;
    return block;
  }

  // The body of a statement: the rest of its tag, and what follows up to an end tag.
  Block ParseBody(EndTags end_tags) {
    tokens_.SkipOperator(":");
    tokens_.Expect(Type::kBlockEnd, "token 'end of statement block'");
    return ParseBlock(end_tags);
  }

  // A body with one end tag, which is taken.
  Block ParseWholeBody(std::string_view end_tag) {
    Block body = ParseBody({end_tag});
    tokens_.ExpectName(end_tag);
    return body;
  }

  bool AtAny(EndTags tags) const {
    return std::ranges::any_of(tags, [&](std::string_view tag) { return tokens_.AtName(tag); });
  }

  static std::string LookingFor(EndTags tags) {
    std::string text = "Jinja was looking for the following tags: ";
    for (const std::string_view tag : tags) {
      if (tag != *tags.begin()) text += " or ";
      text += fmt::format("'{}'", tag);
    }
    return text + ".";
  }

  decltype(Statement::node) ParseStatement(EndTags end_tags) {
    const Token tag = tokens_.Expect(Type::kName, "a tag's name");
    if (tag.text == "if") return ParseIf();
    if (tag.text == "for") return ParseFor();
    if (tag.text == "set") return ParseSet();
    if (tag.text == "macro") return ParseMacro(tag.line);
    if (tag.text == "print") return ParsePrint();
    if (tag.text == "with") return ParseWith();
    if (tag.text == "filter") return ParseFilterBlock();
    if (tag.text == "call" || tag.text == "generation") return ParseCallBlock(tag);
    if (tag.text == "break" || tag.text == "continue") return ParseLoopControl(tag);
    if (std::ranges::find(kUnsupportedTags, tag.text) != std::end(kUnsupportedTags)) {
      tokens_.Fail(fmt::format("the tag '{}' is not supported", tag.text), tag.line);
    } else if (end_tags.size() > 0) {
      tokens_.Fail(fmt::format("Encountered unknown tag '{}'. {}", tag.text, LookingFor(end_tags)),
                   tag.line);
    } else {
      tokens_.Fail(fmt::format("Encountered unknown tag '{}'.", tag.text), tag.line);
    }
    return OutputText{};
  }

  If ParseIf() {
    If result;
    do {
      ExpressionPtr test = expressions_.ParseTuple(/*with_conditional=*/false);
      result.branches.emplace_back(std::move(test), ParseBody({"elif", "else", "endif"}));
    } while (tokens_.SkipName("elif"));
    if (tokens_.SkipName("else")) {
      result.otherwise = ParseWholeBody("endif");
    } else {
      tokens_.ExpectName("endif");
    }
    return result;
  }

  For ParseFor() {
    For result;
    result.target = ParseTarget("in", /*with_attribute=*/false);
    tokens_.ExpectName("in");
    result.iterable = expressions_.ParseTuple(/*with_conditional=*/false, "recursive");
    if (tokens_.SkipName("if")) {
      result.test = expressions_.ParseExpression();
      result.test_target = result.target;
    }
    if (tokens_.AtName("recursive")) tokens_.Fail("a recursive 'for' is not supported");
    ++loops_;
    result.body = ParseBody({"endfor", "else"});
    --loops_;
    if (tokens_.SkipName("else")) {
      result.otherwise = ParseWholeBody("endfor");
    } else {
      tokens_.ExpectName("endfor");
    }
    return result;
  }

  decltype(Statement::node) ParseSet() {
    Target target = ParseTarget("", /*with_attribute=*/true);
    if (tokens_.SkipOperator("=")) return Set{std::move(target), expressions_.ParseTuple()};
    SetBlock result;
    result.target = std::move(target);
    result.filter = expressions_.ParseFilters(nullptr);
    result.body = ParseWholeBody("endset");
    return result;
  }

  OutputExpressions ParsePrint() {
    OutputExpressions output;
    while (!tokens_.failed() && !tokens_.At(Type::kBlockEnd)) {
      if (!output.expressions.empty()) tokens_.ExpectOperator(",");
      output.expressions.push_back(expressions_.ParseExpression());
    }
    return output;
  }

  With ParseWith() {
    With result;
    while (!tokens_.failed() && !tokens_.At(Type::kBlockEnd)) {
      if (!result.variables.empty()) tokens_.ExpectOperator(",");
      Target target = ParseTarget("", /*with_attribute=*/false);
      tokens_.ExpectOperator("=");
      result.variables.emplace_back(std::move(target), expressions_.ParseExpression());
    }
    result.body = ParseWholeBody("endwith");
    return result;
  }

  FilterBlock ParseFilterBlock() {
    FilterBlock result;
    result.filter = expressions_.ParseFilterBlockHead();
    result.body = ParseWholeBody("endfilter");
    return result;
  }

  // A body that is a function of its own: loops outside of it cannot be left from within.
  Block ParseFunctionBody(std::string_view end_tag) {
    const int loops = std::exchange(loops_, 0);
    Block body = ParseWholeBody(end_tag);
    loops_ = loops;
    return body;
  }

  DefineMacro ParseMacro(int line) {
    auto macro = std::make_unique<Macro>();
    macro->line = line;
    macro->name = ParseVariableName();
    ParseSignature(*macro);
    macro->body = ParseFunctionBody("endmacro");
    return {.macro = std::move(macro), .place = {}};
  }

  // A generation is a block that nothing is called with.
  CallBlock ParseCallBlock(const Token& tag) {
    const bool has_call = tag.text == "call";
    CallBlock result{.call = nullptr, .body = std::make_unique<Macro>()};
    result.body->line = tag.line;
    if (has_call && tokens_.AtOperator("(")) ParseSignature(*result.body);
    if (has_call) result.call = expressions_.ParseCallOnly();
    result.body->body = ParseFunctionBody("end" + tag.text);
    return result;
  }

  void ParseSignature(Macro& macro) {
    tokens_.ExpectOperator("(");
    while (!tokens_.failed() && !tokens_.AtOperator(")")) {
      if (!macro.parameters.empty()) tokens_.ExpectOperator(",");
      const std::string name = ParseVariableName();
      if (std::ranges::find(macro.parameters, name) != macro.parameters.end()) {
        tokens_.Fail(fmt::format("duplicate argument '{}' in a macro's definition", name));
      }
      macro.parameters.push_back(name);
      if (tokens_.SkipOperator("=")) {
        macro.defaults.push_back(expressions_.ParseExpression());
      } else if (!macro.defaults.empty()) {
        tokens_.Fail("non-default argument follows default argument");
      }
    }
    tokens_.ExpectOperator(")");
  }

  decltype(Statement::node) ParseLoopControl(const Token& tag) {
    if (loops_ == 0) tokens_.Fail(fmt::format("'{}' outside of a loop", tag.text), tag.line);
    if (tag.text == "break") return Break{};
    return Continue{};
  }

  std::string ParseVariableName() {
    const Token token = tokens_.Expect(Type::kName, "a name");
    static constexpr std::string_view kConstants[] = {"true", "false", "none",
                                                      "True", "False", "None"};
    if (std::ranges::find(kConstants, token.text) != std::end(kConstants)) {
      tokens_.Fail(fmt::format("can't assign to '{}'", token.text), token.line);
    }
    return token.text;
  }

  // `a`, `a.b` where attributes are allowed, `a, b` or `(a, b)`; `stop` may follow a last comma.
  Target ParseTarget(std::string_view stop, bool with_attribute) {
    Target first = ParseSingleTarget(with_attribute);
    if (!tokens_.AtOperator(",")) return first;
    Target tuple;
    tuple.line = first.line;
    tuple.is_tuple = true;
    tuple.elements.push_back(std::move(first));
    while (tokens_.SkipOperator(",")) {
      const bool at_end = tokens_.AtOperator(")") || tokens_.At(Type::kBlockEnd) ||
                          (!stop.empty() && tokens_.AtName(stop));
      if (at_end) break;
      tuple.elements.push_back(ParseSingleTarget(with_attribute));
    }
    return tuple;
  }

  Target ParseSingleTarget(bool with_attribute) {
    Target target;
    target.line = tokens_.line();
    if (++nesting_ > kMaxSourceNesting) {
      tokens_.Fail(
          fmt::format("a target of assignment is nested deeper than {}", kMaxSourceNesting));
    }
    if (tokens_.SkipOperator("(")) {
      target = ParseTarget("", /*with_attribute=*/false);
      tokens_.ExpectOperator(")");
    } else if (!tokens_.At(Type::kName)) {
      tokens_.Fail(fmt::format("can't assign to '{}'", DescribeToken(tokens_.current())));
    } else {
      target.name = ParseVariableName();
      if (with_attribute && tokens_.SkipOperator(".")) {
        target.attribute = tokens_.Expect(Type::kName, "a name").text;
      }
    }
    --nesting_;
    return target;
  }

  TokenStream& tokens_;
  ExpressionParser expressions_;
  int nesting_ = 0;
  int loops_ = 0;  // around the current statement, within the same function
};

}  // namespace

Result<Template> ParseTemplate(std::string_view source) {
  Result<std::vector<Token>> tokens = Tokenize(source);
  if (!tokens) return tokens.error();
  TokenStream stream(*std::move(tokens));
  Template result = Parser(stream).Parse();
  if (stream.failed()) return stream.error();
  return result;
}

}  // namespace convene::jinja
