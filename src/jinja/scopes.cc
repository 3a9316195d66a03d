#include "jinja/scopes.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <set>
#include <string>
#include <utility>

#include "jinja/builtins.h"
#include "jinja/name_mentions.h"
#include "jinja/symbols.h"
#include "jinja/syntax_walk.h"

namespace convene::jinja {
namespace {

// First pass over a block: which variables it reads and stores itself. Blocks with a scope of their
// own are left out, but not what their tags evaluate outside of it.
class Analysis {
 public:
  explicit Analysis(Symbols& symbols) : symbols_(symbols) {}

  void Visit(const Block& block) {
    for (const Statement& statement : block) {
      std::visit([&](const auto& node) { Visit(node); }, statement.node);
    }
  }
  void Visit(const ExpressionPtr& expression) {
    if (expression) Visit(*expression);
  }
  void Declare(const Target& target) {
    if (!target.is_tuple) symbols_.DeclareParameter(target.name);
    for (const Target& element : target.elements) Declare(element);
  }

 private:
  void Visit(const OutputText&) {}
  void Visit(const Break&) {}
  void Visit(const Continue&) {}
  void Visit(const OutputExpressions& node) {
    for (const ExpressionPtr& expression : node.expressions) Visit(expression);
  }
  void Visit(const If& node) {
    Visit(node.branches[0].first);
    const size_t mark = symbols_.mark();
    for (const auto& [test, body] : node.branches) {
      Visit(test);
      Visit(body);
    }
    Visit(node.otherwise);
    symbols_.MakeConditional(mark);
  }
  void Visit(const For& node) { Visit(node.iterable); }
  void Visit(const Set& node) {
    Visit(node.value);
    Store(node.target);
  }
  void Visit(const SetBlock& node) { Store(node.target); }
  void Visit(const FilterBlock& node) { Visit(node.filter); }
  void Visit(const With& node) {
    for (const auto& [target, value] : node.variables) Visit(value);
  }
  void Visit(const DefineMacro& node) { symbols_.Store(node.macro->name); }
  void Visit(const CallBlock& node) { Visit(node.call); }

  void Store(const Target& target) {
    if (target.is_tuple) {
      for (const Target& element : target.elements) Store(element);
    } else if (target.attribute.empty()) {
      symbols_.Store(target.name);
    } else {
      symbols_.Read(target.name);
    }
  }
  void Visit(const Expression& expression) {
    if (const auto* name = std::get_if<Name>(&expression.node)) symbols_.Read(name->name);
    ForEachChild(expression, [&](const Expression& child) { Visit(child); });
  }

  Symbols& symbols_;
};

// A block's variables, and whether it stands under a condition (a soft frame in Jinja's words).
struct Frame {
  Symbols* symbols;
  bool is_conditional = false;
};

// Second pass: gives every name its place, block by block from the outside.
class Placement {
 public:
  void Place(Template& source) {
    if (!MentionedNames(source.body, {"self"}).empty()) {
      Fail(1, "the variable 'self', which stands for the template's blocks, is not supported");
    }
    FunctionSlots slots(nullptr);
    Symbols symbols(nullptr, &slots);
    Analysis(symbols).Visit(source.body);
    Place(source.body, {.symbols = &symbols});
    source.scope = MakeScope(symbols);
    source.num_slots = slots.num_slots();
    source.context_names = std::move(context_names_);
  }
  const std::optional<Error>& error() const { return error_; }

 private:
  void Fail(int line, std::string_view message) {
    if (!error_) error_ = Error{fmt::format("line {}: {}", line, message)};
  }

  Scope MakeScope(const Symbols& symbols) {
    Scope scope = symbols.MakeScope();
    for (const Load& load : scope.loads) {
      if (load.action == Load::Action::kResolve) context_names_.insert(load.name);
    }
    return scope;
  }

  void Place(Block& block, Frame frame) {
    for (Statement& statement : block) {
      std::visit([&](auto& node) { Place(node, frame); }, statement.node);
    }
  }
  void Place(OutputText&, Frame) {}
  void Place(Break&, Frame) {}
  void Place(Continue&, Frame) {}
  void Place(OutputExpressions& node, Frame frame) {
    for (ExpressionPtr& expression : node.expressions) Place(expression, frame);
  }
  void Place(If& node, Frame frame) {
    frame.is_conditional = true;
    for (auto& [test, body] : node.branches) {
      Place(test, frame);
      Place(body, frame);
    }
    Place(node.otherwise, frame);
  }

  void Place(For& node, Frame frame) {
    ++loops_;
    Symbols loop(frame.symbols, frame.symbols->function());
    if (!MentionedNames(node.body, {"loop"}).empty())
      node.loop_slot = loop.DeclareParameter("loop");
    Analysis body(loop);
    body.Declare(node.target);
    body.Visit(node.body);
    Symbols otherwise(frame.symbols, frame.symbols->function());
    Analysis(otherwise).Visit(node.otherwise);

    if (node.test) PlaceTest(node, frame);
    Place(node.iterable, frame);
    Place(node.target, loop);
    Place(node.body, {.symbols = &loop});
    Place(node.otherwise, {.symbols = &otherwise});
    node.scope = MakeScope(loop);
    node.otherwise_scope = MakeScope(otherwise);
    --loops_;
  }

  void PlaceTest(For& node, Frame frame) {
    FunctionSlots slots(frame.symbols->function());
    Symbols symbols(frame.symbols, &slots);
    Analysis analysis(symbols);
    analysis.Declare(node.test_target);
    analysis.Visit(node.test);
    Place(node.test_target, symbols);
    Place(node.test, {.symbols = &symbols});
    node.test_scope = MakeScope(symbols);
    node.test_num_slots = slots.num_slots();
  }

  void Place(Set& node, Frame frame) {
    Place(node.value, frame);
    Place(node.target, *frame.symbols);
  }

  void Place(SetBlock& node, Frame frame) {
    PlaceFiltered(node, frame);
    Place(node.target, *frame.symbols);
  }

  void Place(FilterBlock& node, Frame frame) { PlaceFiltered(node, frame); }

  // What a block with a filter, or assigned to a variable, has within.
  template <typename Node>
  void PlaceFiltered(Node& node, Frame frame) {
    Symbols inner(frame.symbols, frame.symbols->function());
    Analysis analysis(inner);
    analysis.Visit(node.body);
    analysis.Visit(node.filter);
    Place(node.body, {.symbols = &inner});
    Place(node.filter, {.symbols = &inner});
    node.scope = MakeScope(inner);
  }

  void Place(With& node, Frame frame) {
    Symbols inner(frame.symbols, frame.symbols->function());
    Analysis analysis(inner);
    for (const auto& [target, value] : node.variables) analysis.Declare(target);
    analysis.Visit(node.body);
    for (auto& [target, value] : node.variables) {
      Place(value, frame);
      Place(target, inner, /*is_parameter=*/true);
    }
    Place(node.body, {.symbols = &inner});
    node.scope = MakeScope(inner);
  }

  void Place(DefineMacro& node, Frame frame) {
    Place(*node.macro, frame);
    node.place = frame.symbols->Find(node.macro->name);
  }

  void Place(CallBlock& node, Frame frame) {
    Place(*node.body, frame);
    if (node.call) Place(node.call, frame);
  }

  void Place(Macro& macro, Frame frame) {
    FunctionSlots slots(frame.symbols->function());
    Symbols symbols(frame.symbols, &slots);
    for (const std::string& parameter : macro.parameters) {
      macro.parameter_slots.push_back(symbols.DeclareParameter(parameter));
    }
    Analysis analysis(symbols);
    for (const ExpressionPtr& value : macro.defaults) analysis.Visit(value);
    analysis.Visit(macro.body);
    DeclareSpecialParameters(macro, symbols);

    for (ExpressionPtr& value : macro.defaults) Place(value, {.symbols = &symbols});
    Place(macro.body, {.symbols = &symbols});
    macro.scope = MakeScope(symbols);
    macro.num_slots = slots.num_slots();
  }

  // caller, kwargs and varargs exist where the body mentions them.
  void DeclareSpecialParameters(Macro& macro, Symbols& symbols) {
    for (const std::string& name : MentionedNames(macro.body, {"caller", "kwargs", "varargs"})) {
      const auto explicit_one = std::find(macro.parameters.begin(), macro.parameters.end(), name);
      if (explicit_one != macro.parameters.end()) {
        const auto num_behind = static_cast<size_t>(macro.parameters.end() - explicit_one);
        if (name == "caller" && num_behind > macro.defaults.size()) {
          Fail(macro.line, "the special argument 'caller' must be omitted or have a default");
        }
        continue;
      }
      const int slot = symbols.DeclareParameter(name);
      (name == "caller"   ? macro.caller_slot
       : name == "kwargs" ? macro.kwargs_slot
                          : macro.varargs_slot) = slot;
    }
  }

  void Place(Target& target, const Symbols& symbols, bool is_parameter = false) {
    for (Target& element : target.elements) Place(element, symbols, is_parameter);
    if (target.is_tuple) return;
    if (target.name == "loop" && loops_ > 0 && !is_parameter && target.attribute.empty()) {
      Fail(target.line, "Can't assign to special loop variable in for-loop target");
    }
    target.place = symbols.Find(target.name);
  }

  void Place(ExpressionPtr& expression, Frame frame) {
    if (expression) Place(*expression, frame);
  }

  void Place(Expression& expression, Frame frame) {
    if (auto* name = std::get_if<Name>(&expression.node)) {
      name->place = frame.symbols->Find(name->name);
    } else if (const auto* filter = std::get_if<ApplyFilter>(&expression.node)) {
      if (!frame.is_conditional && FindFilter(filter->name) == nullptr) {
        Fail(expression.line, DescribeMissingFilter(filter->name));
      }
    } else if (const auto* test = std::get_if<ApplyTest>(&expression.node)) {
      if (!frame.is_conditional && FindTest(test->name) == nullptr) {
        Fail(expression.line, DescribeMissingTest(test->name));
      }
    } else if (std::holds_alternative<Conditional>(expression.node)) {
      frame.is_conditional = true;
    }
    ForEachChild(expression, [&](Expression& child) { Place(child, frame); });
  }

  std::set<std::string> context_names_;
  std::optional<Error> error_;
  int loops_ = 0;  // around the current statement, through macros, too
};

}  // namespace

Status PlaceVariables(Template& source) {
  Placement placement;
  placement.Place(source);
  if (placement.error()) return *placement.error();
  return {};
}

}  // namespace convene::jinja
