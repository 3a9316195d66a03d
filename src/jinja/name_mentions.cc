#include "jinja/name_mentions.h"

#include "jinja/syntax_walk.h"

namespace convene::jinja {
namespace {

class Mentions {
 public:
  explicit Mentions(std::set<std::string> names) : open_(std::move(names)) {}

  void Visit(const Block& block) {
    for (const Statement& statement : block) {
      if (open_.empty()) return;
      std::visit([&](const auto& node) { Visit(node); }, statement.node);
    }
  }
  std::set<std::string> found() && { return std::move(found_); }

 private:
  void Visit(const OutputText&) {}
  void Visit(const Break&) {}
  void Visit(const Continue&) {}
  void Visit(const OutputExpressions& node) {
    for (const ExpressionPtr& expression : node.expressions) Visit(expression);
  }
  void Visit(const If& node) {
    for (const auto& [test, body] : node.branches) {
      Visit(test);
      Visit(body);
    }
    Visit(node.otherwise);
  }
  void Visit(const For& node) {
    Visit(node.target);
    Visit(node.iterable);
    Visit(node.body);
    Visit(node.otherwise);
    Visit(node.test);
  }
  void Visit(const Set& node) {
    Visit(node.target);
    Visit(node.value);
  }
  void Visit(const SetBlock& node) {
    Visit(node.target);
    Visit(node.filter);
    Visit(node.body);
  }
  void Visit(const FilterBlock& node) {
    Visit(node.body);
    Visit(node.filter);
  }
  void Visit(const With& node) {
    for (const auto& [target, value] : node.variables) Visit(target);
    for (const auto& [target, value] : node.variables) Visit(value);
    Visit(node.body);
  }
  void Visit(const DefineMacro& node) { Visit(*node.macro); }
  void Visit(const CallBlock& node) {
    Visit(node.call);
    Visit(*node.body);
  }
  void Visit(const Macro& macro) {
    for (const std::string& parameter : macro.parameters) open_.erase(parameter);
    for (const ExpressionPtr& value : macro.defaults) Visit(value);
    Visit(macro.body);
  }
  void Visit(const Target& target) {
    if (!target.is_tuple && target.attribute.empty()) open_.erase(target.name);
    for (const Target& element : target.elements) Visit(element);
  }
  void Visit(const ExpressionPtr& expression) {
    if (expression) Visit(*expression);
  }
  void Visit(const Expression& expression) {
    if (const auto* name = std::get_if<Name>(&expression.node)) {
      if (open_.erase(name->name) > 0) found_.insert(name->name);
    }
    ForEachChild(expression, [&](const Expression& child) { Visit(child); });
  }

  std::set<std::string> open_;  // neither found nor assigned to so far
  std::set<std::string> found_;
};

}  // namespace

std::set<std::string> MentionedNames(const Block& block, std::set<std::string> names) {
  Mentions mentions(std::move(names));
  mentions.Visit(block);
  return std::move(mentions).found();
}

}  // namespace convene::jinja
