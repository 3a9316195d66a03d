// The grammars of answers: JSON, and calls of tools as the model's template writes them.
#include <fmt/format.h>

#include <map>
#include <utility>

#include "grammar/json_schema.h"
#include "grammar/json_text.h"
#include "openai/answer_forms.h"
#include "openai/parameter_grammar.h"

namespace convene::openai {
namespace {

using grammar::Grammar;
using nlohmann::ordered_json;
using Element = Grammar::Element;
using Sequence = Grammar::Sequence;

constexpr const char* kFinal = "<|channel|>final<|message|>";
constexpr const char* kAnalysis = "<|channel|>analysis<|message|>";
constexpr const char* kNextMessage = "<|start|>assistant";
constexpr size_t kMostNumbered = 16;  // calls whose names have numbers

class Builder {
 public:
  Builder(const AnswerSyntax& syntax, const GenerationBody& body) : syntax_(syntax), body_(body) {}

  // False: the error is set.
  bool Build(const std::string& tail) {
    const Element answer = grammar_.AddRule();
    const bool must_call =
        body_.tool_choice == ToolChoice::kRequired || body_.tool_choice == ToolChoice::kNamed;
    const bool may_call = body_.tools.is_array() && syntax_.calls != CallForm::kNone;
    if (body_.format != TextFormat::kText && !must_call && !AddJson(answer)) return false;
    const bool is_call = must_call || (may_call && body_.format != TextFormat::kText);
    if (is_call && !AddCalls(answer)) return false;
    if (!is_call && may_call && !AddTextWithCalls(answer)) return false;
    AddReasoning(answer, tail);
    return true;
  }

  Grammar TakeGrammar() { return std::move(grammar_); }
  FieldError TakeError() { return *std::move(error_); }

 private:
  bool AddJson(Element answer) {
    Sequence json;
    if (syntax_.calls == CallForm::kChannels) {
      json = grammar_.Text(kFinal);
    } else {
      json = {grammar::JsonText(&grammar_).Space()};  // as models put it before a word
    }
    if (body_.format == TextFormat::kJsonObject) {
      json.push_back(grammar::AddJsonObject(&grammar_));
    } else {
      const auto schema = grammar::AddJsonSchema(body_.schema, &grammar_);
      if (!schema) {
        error_ = FieldError{Error{"response_format.json_schema.schema: " + schema.error().message},
                            "response_format"};
        return false;
      }
      json.push_back(*schema);
    }
    grammar_.AddAlternative(answer, json);
    return true;
  }

  // The arguments of a tool: what its schema says where that is to be kept to. They are the same in
  // each of its calls.
  bool AddArguments(size_t tool_idx, Sequence* call) {
    if (!arguments_.contains(tool_idx)) {
      Sequence arguments;
      if (!MakeArguments(tool_idx, &arguments)) return false;
      arguments_.emplace(tool_idx, std::move(arguments));
    }
    Grammar::Append(call, arguments_.at(tool_idx));
    return true;
  }

  bool MakeArguments(size_t tool_idx, Sequence* call) {
    const ordered_json& function = body_.tools[tool_idx]["function"];
    const bool is_strict = function.value("strict", ordered_json(false)) == true;
    const bool is_kept = is_strict || body_.tool_choice == ToolChoice::kRequired ||
                         body_.tool_choice == ToolChoice::kNamed;
    ordered_json schema = is_kept ? function.value("parameters", ordered_json()) : ordered_json();
    if (schema.is_object() && !schema.contains("type")) schema["type"] = "object";
    Result<Sequence> arguments = ArgumentsOf(schema);
    if (!arguments) {
      error_ = FieldError{Error{fmt::format("tools[{}].function.parameters: {}", tool_idx,
                                            arguments.error().message)},
                          "tools"};
      return false;
    }
    *call = *std::move(arguments);
    return true;
  }

  // Null: any.
  Result<Sequence> ArgumentsOf(const ordered_json& schema) {
    if (syntax_.calls == CallForm::kParameters) return AddParameters(syntax_, schema, &grammar_);
    if (schema.is_null()) return Sequence{grammar::AddJsonObject(&grammar_)};
    const auto arguments = grammar::AddJsonSchema(schema, &grammar_);
    if (!arguments) return arguments.error();
    return Sequence{*arguments};
  }

  // One call of one tool, the `number`-th of the answer, without what is around all calls.
  // nlohmann's escapes are those of a name.
  bool AddCall(size_t tool_idx, size_t number, Element calls) {
    const auto name = body_.tools[tool_idx]["function"]["name"].get<std::string>();
    const std::string object =
        fmt::format("{{\"name\": {}, \"arguments\": ", ordered_json(name).dump());
    std::string before;
    std::string behind;
    switch (syntax_.calls) {
      case CallForm::kObjects:
        before = syntax_.call_begin + "\n" + object;
        behind = "}\n" + syntax_.call_end;
        break;
      case CallForm::kArray:
        before = object;
        behind = "}";
        break;
      case CallForm::kNamed:
        before = syntax_.call_begin;
        if (syntax_.has_fences) {
          before += "function" + syntax_.separator + name + "\n```json\n";
          behind = "\n```" + syntax_.call_end;
        } else {
          before += syntax_.has_numbers ? fmt::format("functions.{}:{}", name, number) : name;
          before += syntax_.separator;
          behind = syntax_.call_end;
        }
        break;
      case CallForm::kChannels:
        before = " to=functions." + name + "<|channel|>commentary json<|message|>";
        break;
      case CallForm::kParameters:
        before = syntax_.call_begin;
        if (!syntax_.name_begin.empty()) before += "\n" + syntax_.name_begin;
        before += name + syntax_.name_end + "\n";
        if (!syntax_.function_end.empty()) behind = syntax_.function_end + "\n";
        behind += syntax_.call_end;
        break;
      case CallForm::kNone:
        break;
    }
    Sequence call = grammar_.Text(before);
    if (!AddArguments(tool_idx, &call)) return false;
    grammar_.AppendText(&call, behind);
    grammar_.AddAlternative(calls, call);
    return true;
  }

  // The `number`-th call and, where there may be several, those behind it.
  bool AddCallsFrom(size_t number, Sequence* calls) {
    const Element call = grammar_.AddRule();
    for (size_t i = 0; i < body_.tools.size(); ++i) {
      const auto& name = body_.tools[i]["function"]["name"];
      if (body_.tool_choice == ToolChoice::kNamed && name != body_.named_tool) continue;
      if (!AddCall(i, number, call)) return false;
    }
    calls->push_back(call);
    const bool is_one = body_.tool_choice == ToolChoice::kNamed || !body_.parallel_calls ||
                        syntax_.calls == CallForm::kChannels;  // a call ends the answer
    if (is_one || (syntax_.has_numbers && number + 1 == kMostNumbered)) return true;
    const Element more = grammar_.AddRule();
    const bool has_tags =
        syntax_.calls == CallForm::kObjects || syntax_.calls == CallForm::kParameters;
    Sequence next = grammar_.Text(syntax_.calls == CallForm::kArray ? ", " : has_tags ? "\n" : "");
    if (!syntax_.has_numbers) {
      grammar_.Append(&next, {call, more});
    } else if (!AddCallsFrom(number + 1, &next)) {
      return false;
    }
    grammar_.AddAlternative(more, {});
    grammar_.AddAlternative(more, next);
    calls->push_back(more);
    return true;
  }

  // All calls of an answer, from the marker before the first one on.
  bool AddCalls(Element answer) {
    Sequence calls = grammar_.Text(syntax_.section_begin);
    if (syntax_.calls == CallForm::kArray) grammar_.AppendText(&calls, "[");
    if (!AddCallsFrom(0, &calls)) return false;
    if (syntax_.calls == CallForm::kArray) grammar_.AppendText(&calls, "]");
    grammar_.AppendText(&calls, syntax_.section_end);
    grammar_.AddAlternative(answer, calls);
    return true;
  }

  // Text as the model likes; once it begins a call, that has its form.
  bool AddTextWithCalls(Element answer) {
    const Element calls = grammar_.AddRule();
    if (!AddCalls(calls)) return false;
    if (syntax_.calls == CallForm::kChannels) {
      const Element any = grammar_.AddRule();
      grammar_.AddAlternative(any, {});
      grammar_.AddAlternative(any, {grammar_.Bytes(grammar::ByteSet().set()), any});
      Sequence text = grammar_.Text(kFinal);
      text.push_back(any);
      grammar_.AddAlternative(answer, text);
      grammar_.AddAlternative(answer, {calls});
      return true;
    }
    // All that begins with the marker is calls, so text goes up to it.
    const std::string& marker =
        syntax_.section_begin.empty() ? syntax_.call_begin : syntax_.section_begin;
    grammar_.AddAlternative(answer, {grammar_.TextWithout(marker)});
    grammar_.AddAlternative(answer, {grammar_.TextWithout(marker), calls});
    return true;
  }

  // Before its answer a model may think.
  void AddReasoning(Element answer, const std::string& tail) {
    const Element all = grammar_.AddRule();
    grammar_.SetRoot(all);
    const bool is_thinking = BeginsReasoning(syntax_, tail);
    const bool has_thought =
        syntax_.thinks() && tail.find(syntax_.think_end) != std::string::npos && !is_thinking;
    if (!is_thinking) grammar_.AddAlternative(all, {answer});
    if (syntax_.calls == CallForm::kChannels) {
      Sequence thought = grammar_.Text(kAnalysis);
      thought.push_back(grammar_.TextUntil("<|end|>"));
      grammar_.AppendText(&thought, kNextMessage);
      thought.push_back(answer);
      return grammar_.AddAlternative(all, thought);
    }
    if (!syntax_.thinks() || has_thought) return;
    Sequence thought;
    if (!is_thinking) thought = grammar_.Text(syntax_.think_begin);
    grammar::JsonText json(&grammar_);
    grammar_.Append(&thought,
                    {grammar_.TextUntil(syntax_.think_end), json.Space(), json.Space(), answer});
    grammar_.AddAlternative(all, thought);
  }

  const AnswerSyntax& syntax_;
  const GenerationBody& body_;
  Grammar grammar_;
  std::map<size_t, Sequence> arguments_;  // by tool
  std::optional<FieldError> error_;
};

bool HasStrictTool(const ordered_json& tools) {
  for (const ordered_json& tool : tools) {
    if (tool["function"].value("strict", ordered_json(false)) == true) return true;
  }
  return false;
}

}  // namespace

std::variant<std::optional<Grammar>, FieldError> GrammarOf(const AnswerSyntax& syntax,
                                                           const std::string& tail,
                                                           const GenerationBody& body) {
  const bool must_call =
      body.tool_choice == ToolChoice::kRequired || body.tool_choice == ToolChoice::kNamed;
  const bool keeps_calls =
      body.tools.is_array() && (HasStrictTool(body.tools) || !body.parallel_calls);
  const bool can_keep = syntax.calls != CallForm::kNone;
  if (must_call && !can_keep) {
    return FieldError{Error{"tool_choice cannot require a call: the model's chat template writes "
                            "none in a form that is known here"},
                      "tool_choice"};
  }
  if (keeps_calls && !can_keep) {
    return FieldError{Error{"strict tools and parallel_tool_calls need a chat template that writes "
                            "calls in a form that is known here"},
                      "tools"};
  }
  if (body.format != TextFormat::kText && body.tools.is_array() && !can_keep) {
    return FieldError{Error{"response_format beside tools needs a chat template that writes calls "
                            "in a form that is known here; give one of the two"},
                      "response_format"};
  }
  if (body.format == TextFormat::kText && !must_call && !keeps_calls) {
    return std::optional<Grammar>();
  }
  Builder builder(syntax, body);
  if (!builder.Build(tail)) return builder.TakeError();
  return std::optional(builder.TakeGrammar());
}

}  // namespace convene::openai
