// The interpreter's half that calls: functions, methods, and macros, whose arguments Jinja binds.
#include <fmt/format.h>

#include <algorithm>

#include "jinja/builtins.h"
#include "jinja/interpreter.h"
#include "jinja/nested_evaluation.h"
#include "jinja/repr.h"
#include "jinja/sequence.h"

namespace convene::jinja {
namespace {

// Takes the argument of that name out; missing where it was not given.
Value TakeNamed(Arguments& arguments, std::string_view name) {
  const auto found = std::find_if(arguments.named.begin(), arguments.named.end(),
                                  [&](const auto& argument) { return argument.first == name; });
  if (found == arguments.named.end()) return {};
  Value value = std::move(found->second);
  arguments.named.erase(found);
  return value;
}

Value InvokeJoiner(Run& run, Joiner& joiner) {
  if (std::exchange(joiner.used, true)) return joiner.separator->values[0];
  return run.String("");
}

}  // namespace

Arguments Interpreter::EvaluateArguments(const CallArguments& arguments) {
  Arguments result;
  result.positional = EvaluateAll(arguments.positional);
  for (const auto& [name, expression] : arguments.named) {
    result.named.emplace_back(name, Evaluate(*expression));
  }
  if (arguments.more_positional) {
    const auto more = Iterate(run_, Evaluate(*arguments.more_positional));
    result.positional.insert(result.positional.end(), more->values.begin(), more->values.end());
  }
  if (arguments.more_named) {
    const Value more = Evaluate(*arguments.more_named);
    if (!more.Is(Kind::kDict)) {
      run_.Fail(fmt::format("argument after ** must be a mapping, not {}", TypeName(more)));
      return result;
    }
    for (const auto& [name, value] : more.AsDict().entries) {
      if (!name.IsString()) {
        run_.Fail("keywords must be strings");
        return result;
      }
      if (std::any_of(arguments.named.begin(), arguments.named.end(),
                      [&](const auto& given) { return given.first == name.Text(); })) {
        run_.Fail(fmt::format("got multiple values for keyword argument '{}'", name.Text()));
      }
      result.named.emplace_back(name.Text(), value);
    }
  }
  return result;
}

Value Interpreter::EvaluateCall(const Call& node, int line, const Value* caller) {
  const Value callee = Evaluate(*node.callee);
  Arguments arguments = EvaluateArguments(node.arguments);
  if (run_.failed()) return None{};
  if (caller != nullptr) arguments.named.emplace_back("caller", *caller);
  run_.set_line(line);
  return Invoke(callee, std::move(arguments));
}

Value Interpreter::Invoke(const Value& callee, Arguments arguments) {
  switch (callee.kind()) {
    case Kind::kUndefined:
      return run_.Fail(callee.AsUndefined().message);
    case Kind::kMacro:
      return InvokeMacro(callee.Get<MacroValue>(), std::move(arguments));
    case Kind::kFunction:
      return callee.Get<const Builtin*>()->Call(run_, {}, arguments);
    case Kind::kMethod: {
      const Method& method = callee.Get<Method>();
      return method.entry->Call(run_, method.self->values[0], arguments);
    }
    case Kind::kJoiner:
      return InvokeJoiner(run_, *callee.Get<std::shared_ptr<Joiner>>());
    case Kind::kLoop:
      return run_.Fail(
          "The loop must have the 'recursive' marker to be called recursively (which is not "
          "supported)");
    default:
      return run_.Fail(fmt::format("'{}' object is not callable", TypeName(callee)));
  }
}

bool Interpreter::BindMacro(const Macro& macro, Arguments arguments, Activation& activation) {
  const auto slot_at = [&](int slot) -> Value& {
    return activation.slots[static_cast<size_t>(slot)];
  };
  const size_t num_parameters = macro.parameters.size();
  const size_t num_given = std::min(arguments.positional.size(), num_parameters);
  for (size_t i = 0; i < num_parameters; ++i) {
    slot_at(macro.parameter_slots[i]) =
        i < num_given ? arguments.positional[i] : TakeNamed(arguments, macro.parameters[i]);
  }
  if (macro.caller_slot >= 0) {
    Value caller = TakeNamed(arguments, "caller");
    const bool is_given = !caller.IsMissing() && !caller.IsNone();
    slot_at(macro.caller_slot) =
        is_given ? std::move(caller) : run_.NewUndefined("No caller defined");
  }
  if (macro.kwargs_slot >= 0) {
    std::vector<Dict::Entry> entries;
    for (auto& [name, value] : arguments.named) {
      entries.emplace_back(run_.String(name), std::move(value));
    }
    slot_at(macro.kwargs_slot) = run_.NewDict(std::move(entries));
  } else if (!arguments.named.empty()) {
    run_.Fail(fmt::format("macro {} takes no keyword argument '{}'", QuoteText(macro.name),
                          arguments.named[0].first));
  }
  Values rest(arguments.positional.begin() + static_cast<std::ptrdiff_t>(num_given),
              arguments.positional.end());
  if (macro.varargs_slot >= 0) {
    slot_at(macro.varargs_slot) = run_.NewTuple(std::move(rest));
  } else if (!rest.empty()) {
    run_.Fail(fmt::format("macro {} takes not more than {} argument(s)", QuoteText(macro.name),
                          num_parameters));
  }
  return !run_.failed();
}

Value Interpreter::InvokeMacro(const MacroValue& value, Arguments arguments) {
  const Nested nested(*this);
  if (!nested.ok) return None{};
  const Macro& macro = *value.macro;
  auto activation = run_.NewActivation(static_cast<size_t>(macro.num_slots), value.closure);
  if (run_.failed() || !BindMacro(macro, std::move(arguments), *activation)) return None{};

  Activation* const outer = std::exchange(current_, activation.get());
  Enter(macro.scope);
  const size_t num_required = macro.parameters.size() - macro.defaults.size();
  for (size_t i = 0; i < macro.parameters.size() && !run_.failed(); ++i) {
    Value& parameter = current_->slots[static_cast<size_t>(macro.parameter_slots[i])];
    if (!parameter.IsMissing()) continue;
    Value otherwise = i >= num_required
                          ? Evaluate(*macro.defaults[i - num_required])
                          : run_.NewUndefined(fmt::format("parameter '{}' was not provided",
                                                          macro.parameters[i]));
    parameter = std::move(otherwise);
  }
  std::string text;
  if (!run_.failed()) Capture(macro.body, &text);
  current_ = outer;
  if (activation->has_macros) run_.Keep(std::move(activation));
  return run_.String(std::move(text));
}

}  // namespace convene::jinja
