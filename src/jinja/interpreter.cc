#include "jinja/interpreter.h"

#include <fmt/format.h>

#include <algorithm>

#include "jinja/builtins.h"
#include "jinja/nested_evaluation.h"
#include "jinja/repr.h"
#include "jinja/sequence.h"

namespace convene::jinja {

std::string Interpreter::Render() {
  const auto activation =
      run_.NewActivation(static_cast<size_t>(source_.num_slots), /*parent=*/nullptr);
  if (run_.failed()) return "";
  current_ = activation.get();
  Enter(source_.scope);
  Execute(source_.body);
  current_ = nullptr;
  return std::move(out_);
}

void Interpreter::Write(std::string_view text) {
  if (captured_bytes_ + out_.size() + text.size() > run_.limits().max_output_bytes) {
    run_.Fail(
        fmt::format("the template writes more than {} bytes", run_.limits().max_output_bytes));
  }
  if (run_.SpendText(text.size())) out_ += text;
}

Value& Interpreter::At(Place place) {
  Activation* activation = current_;
  for (int hop = 0; hop < place.hops; ++hop) activation = activation->parent;
  return activation->slots[static_cast<size_t>(place.slot)];
}

void Interpreter::Enter(const Scope& scope) {
  for (const Load& load : scope.loads) {
    if (!run_.Spend()) return;
    Value& variable = current_->slots[static_cast<size_t>(load.slot)];
    switch (load.action) {
      case Load::Action::kClear:
        variable = Value();
        break;
      case Load::Action::kCopy:
        variable = At(load.source);
        break;
      case Load::Action::kResolve:
        if (const Value* given = context_.Find(load.name)) {
          variable = *given;
        } else if (const Builtin* function = FindFunction(load.name)) {
          variable = function;
        } else {
          variable = Value();
        }
        break;
    }
  }
}

void Interpreter::Leave(const Scope& scope) {
  for (const int slot : scope.slots) current_->slots[static_cast<size_t>(slot)] = Value();
}

void Interpreter::Assign(const Target& target, const Value& value) {
  if (run_.failed()) return;
  run_.set_line(target.line);
  if (target.is_tuple) {
    if (!IsIterable(value)) {
      run_.Fail(fmt::format("cannot unpack non-iterable {} object", TypeName(value)));
      return;
    }
    const auto parts = Iterate(run_, value);
    if (parts->values.size() != target.elements.size()) {
      run_.Fail(fmt::format("cannot unpack {} values into {} variables", parts->values.size(),
                            target.elements.size()));
    }
    for (size_t i = 0; i < target.elements.size() && !run_.failed(); ++i) {
      Assign(target.elements[i], parts->values[i]);
    }
  } else if (target.attribute.empty()) {
    At(target.place) = value;
  } else if (target.attribute.starts_with('_')) {
    run_.Fail(
        fmt::format("Chat templates cannot store underscore-prefixed attributes on a "
                    "namespace, but got {}. Please rename the attribute.",
                    QuoteText(target.attribute)));
  } else {
    run_.SetAttribute(At(target.place).AsNamespace(), target.attribute, value);
  }
}

bool Interpreter::CheckNamespaces(const Target& target) {
  if (!target.attribute.empty() && !At(target.place).Is(Kind::kNamespace)) {
    run_.Fail("cannot assign attribute on non-namespace object");
    return false;
  }
  return std::all_of(target.elements.begin(), target.elements.end(),
                     [&](const Target& element) { return CheckNamespaces(element); });
}

Interpreter::Flow Interpreter::Execute(const Block& block) {
  const Nested nested(*this);
  for (const Statement& statement : block) {
    if (!run_.Spend()) return Flow::kNormal;
    run_.set_line(statement.line);
    const Flow flow = std::visit([&](const auto& node) { return Execute(node); }, statement.node);
    if (flow != Flow::kNormal) return flow;
  }
  return Flow::kNormal;
}

Interpreter::Flow Interpreter::Execute(const OutputText& node) {
  Write(node.text);
  return Flow::kNormal;
}

Interpreter::Flow Interpreter::Execute(const OutputExpressions& node) {
  for (const ExpressionPtr& expression : node.expressions) {
    const Value value = Evaluate(*expression);
    if (run_.failed()) break;
    Write(value.IsString() ? value.Text() : Str(run_, value));
  }
  return Flow::kNormal;
}

Interpreter::Flow Interpreter::Execute(const If& node) {
  for (const auto& [test, body] : node.branches) {
    const bool is_true = IsTrue(Evaluate(*test));
    if (run_.failed()) return Flow::kNormal;
    if (is_true) return Execute(body);
  }
  return Execute(node.otherwise);
}

std::shared_ptr<Loop> Interpreter::MakeLoop(const For& node) {
  const Value iterable = Evaluate(*node.iterable);
  if (run_.failed()) return nullptr;
  auto loop = std::make_shared<Loop>();
  loop->items = Iterate(run_, iterable);
  if (!node.test || run_.failed()) return loop;

  // The test has variables of its own, which are looked up once.
  std::shared_ptr<Activation> activation =
      run_.NewActivation(static_cast<size_t>(node.test_num_slots), current_);
  if (run_.failed()) return loop;
  const auto within = [this, activation](auto&& act) {
    Activation* const outer = std::exchange(current_, activation.get());
    act();
    current_ = outer;
  };
  within([&] { Enter(node.test_scope); });
  loop->test = [this, within, &node](const Value& element) {
    bool passes = false;
    within([&] {
      Assign(node.test_target, element);
      passes = !run_.failed() && IsTrue(Evaluate(*node.test));
    });
    return passes;
  };
  return loop;
}

Interpreter::Flow Interpreter::Execute(const For& node) {
  const std::shared_ptr<Loop> loop = MakeLoop(node);
  bool has_finished_one = false;  // an iteration, to its end: Jinja's condition for `else`
  Flow flow = Flow::kNormal;
  while (!run_.failed() && flow != Flow::kBreak) {
    const Value* element = loop->At(loop->index0 + 1);
    if (element == nullptr || !run_.Spend()) break;
    ++loop->index0;
    Assign(node.target, *element);
    if (node.loop_slot >= 0) current_->slots[static_cast<size_t>(node.loop_slot)] = loop;
    Enter(node.scope);
    flow = Execute(node.body);
    has_finished_one |= flow == Flow::kNormal;
  }
  if (run_.failed()) return Flow::kNormal;
  loop->test = nullptr;  // the variables that it sees may be gone when the loop is
  Leave(node.scope);
  if (has_finished_one || node.otherwise.empty()) return Flow::kNormal;
  Enter(node.otherwise_scope);
  flow = Execute(node.otherwise);
  Leave(node.otherwise_scope);
  return flow;
}

Interpreter::Flow Interpreter::Execute(const Set& node) {
  if (!CheckNamespaces(node.target)) return Flow::kNormal;
  Assign(node.target, Evaluate(*node.value));
  return Flow::kNormal;
}

Interpreter::Flow Interpreter::Capture(const Block& body, std::string* text) {
  std::string outer = std::exchange(out_, {});
  captured_bytes_ += outer.size();
  const Flow flow = Execute(body);
  captured_bytes_ -= outer.size();
  *text = std::exchange(out_, std::move(outer));
  return flow;
}

Value Interpreter::ApplyToText(const Expression& filter, std::string text) {
  Value outer = std::exchange(block_text_, run_.String(std::move(text)));
  Value result = Evaluate(filter);
  block_text_ = std::move(outer);
  return result;
}

Interpreter::Flow Interpreter::Execute(const SetBlock& node) {
  Enter(node.scope);
  std::string text;
  const Flow flow = Capture(node.body, &text);
  if (flow != Flow::kNormal || run_.failed()) return flow;
  const Value value =
      node.filter ? ApplyToText(*node.filter, std::move(text)) : run_.String(std::move(text));
  if (!run_.failed() && CheckNamespaces(node.target)) Assign(node.target, value);
  Leave(node.scope);
  return Flow::kNormal;
}

Interpreter::Flow Interpreter::Execute(const FilterBlock& node) {
  Enter(node.scope);
  std::string text;
  const Flow flow = Capture(node.body, &text);
  if (flow != Flow::kNormal || run_.failed()) return flow;
  Write(Str(run_, ApplyToText(*node.filter, std::move(text))));
  Leave(node.scope);
  return Flow::kNormal;
}

Interpreter::Flow Interpreter::Execute(const With& node) {
  Enter(node.scope);
  for (const auto& [target, value] : node.variables) Assign(target, Evaluate(*value));
  if (run_.failed()) return Flow::kNormal;
  const Flow flow = Execute(node.body);
  Leave(node.scope);
  return flow;
}

Interpreter::Flow Interpreter::Execute(const DefineMacro& node) {
  current_->has_macros = true;
  At(node.place) = MacroValue{.macro = node.macro.get(), .closure = current_};
  return Flow::kNormal;
}

Interpreter::Flow Interpreter::Execute(const CallBlock& node) {
  current_->has_macros = true;
  const MacroValue body{.macro = node.body.get(), .closure = current_};
  if (node.call == nullptr) {
    Write(Str(run_, InvokeMacro(body, {})));
    return Flow::kNormal;
  }
  const Value caller = body;
  const auto& call = std::get<Call>(node.call->node);
  const Value result = EvaluateCall(call, node.call->line, &caller);
  if (!run_.failed()) Write(Str(run_, result));
  return Flow::kNormal;
}

}  // namespace convene::jinja
