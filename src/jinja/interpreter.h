// Interpreter: renders one template with one context. It holds the state of the evaluation (where
// it is, what is being written); limits, failure and values are the Run's.
#pragma once

#include <string>
#include <string_view>

#include "jinja/run.h"
#include "jinja/syntax.h"
#include "jinja/value.h"

namespace convene::jinja {

class Interpreter {
 public:
  // `source` has its variables placed. Everything must outlive the interpreter.
  Interpreter(const Template& source, const Dict& context, Run& run)
      : source_(source), context_(context), run_(run) {}

  // The rendered text; meaningless if the run has failed.
  std::string Render();

 private:
  enum class Flow { kNormal, kBreak, kContinue };
  class Nested;

  // Statements (interpreter.cc). A flow other than kNormal leaves the blocks up to the loop.
  Flow Execute(const Block& block);
  Flow Execute(const OutputText& node);
  Flow Execute(const OutputExpressions& node);
  Flow Execute(const If& node);
  Flow Execute(const For& node);
  Flow Execute(const Set& node);
  Flow Execute(const SetBlock& node);
  Flow Execute(const FilterBlock& node);
  Flow Execute(const With& node);
  Flow Execute(const DefineMacro& node);
  Flow Execute(const CallBlock& node);
  Flow Execute(const Break&) { return Flow::kBreak; }
  Flow Execute(const Continue&) { return Flow::kContinue; }
  std::shared_ptr<Loop> MakeLoop(const For& node);
  // Runs a body with its output captured; none if a loop was left from within.
  Flow Capture(const Block& body, std::string* text);
  Value ApplyToText(const Expression& filter, std::string text);
  void Write(std::string_view text);

  // Variables.
  Value& At(Place place);
  void Enter(const Scope& scope);
  void Leave(const Scope& scope);
  void Assign(const Target& target, const Value& value);
  bool CheckNamespaces(const Target& target);

  // Expressions (evaluate.cc).
  Value Evaluate(const Expression& expression);
  Value Evaluate(const Constant& node, int line);
  Value Evaluate(const Name& node, int line);
  Value Evaluate(const TupleLiteral& node, int line);
  Value Evaluate(const ListLiteral& node, int line);
  Value Evaluate(const DictLiteral& node, int line);
  Value Evaluate(const Unary& node, int line);
  Value Evaluate(const Binary& node, int line);
  Value Evaluate(const CompareChain& node, int line);
  Value Evaluate(const Concatenation& node, int line);
  Value Evaluate(const Conditional& node, int line);
  Value Evaluate(const AttributeOf& node, int line);
  Value Evaluate(const ItemOf& node, int line);
  Value Evaluate(const Slice& node, int line);
  Value Evaluate(const Call& node, int line);
  Value Evaluate(const ApplyFilter& node, int line);
  Value Evaluate(const ApplyTest& node, int line);
  Values EvaluateAll(const std::vector<ExpressionPtr>& expressions);

  // Calls (call.cc).
  Arguments EvaluateArguments(const CallArguments& arguments);
  Value EvaluateCall(const Call& node, int line, const Value* caller);
  Value Invoke(const Value& callee, Arguments arguments);
  Value InvokeMacro(const MacroValue& macro, Arguments arguments);
  bool BindMacro(const Macro& macro, Arguments arguments, Activation& activation);

  const Template& source_;
  const Dict& context_;
  Run& run_;
  Activation* current_ = nullptr;
  std::string out_;
  size_t captured_bytes_ = 0;  // in outputs that the current one is captured within
  Value block_text_;           // what a filter without input is applied to
  int depth_ = 0;
};

}  // namespace convene::jinja
