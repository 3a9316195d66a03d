#include "openai/answer_syntax.h"

#include <utility>

namespace convene::openai {
namespace {

constexpr const char* kThinkBegin = "<think>";
constexpr const char* kThinkEnd = "</think>";

AnswerSyntax CallsOf(const text::ChatTemplate& chat_template) {
  if (chat_template.Contains("<|channel|>")) return {.calls = CallForm::kChannels};
  if (chat_template.Contains("<｜tool▁call▁begin｜>")) {
    return {.calls = CallForm::kNamed,
            .section_begin = "<｜tool▁calls▁begin｜>",
            .section_end = "<｜tool▁calls▁end｜>",
            .call_begin = "<｜tool▁call▁begin｜>",
            .separator = "<｜tool▁sep｜>",
            .call_end = "<｜tool▁call▁end｜>",
            .has_fences = chat_template.Contains("```json")};
  }
  if (chat_template.Contains("<|tool_calls_section_begin|>")) {
    return {.calls = CallForm::kNamed,
            .section_begin = "<|tool_calls_section_begin|>",
            .section_end = "<|tool_calls_section_end|>",
            .call_begin = "<|tool_call_begin|>",
            .separator = "<|tool_call_argument_begin|>",
            .call_end = "<|tool_call_end|>",
            .has_numbers = true};
  }
  if (chat_template.Contains("[TOOL_CALLS]")) {
    return {.calls = CallForm::kArray, .section_begin = "[TOOL_CALLS]"};
  }
  if (chat_template.Contains("<|tool_call|>")) {
    return {.calls = CallForm::kArray, .section_begin = "<|tool_call|>"};
  }
  if (!chat_template.Contains("<tool_call>")) return {};
  AnswerSyntax tags = {
      .calls = CallForm::kObjects, .call_begin = "<tool_call>", .call_end = "</tool_call>"};
  // The tags alone do not say what is between them.
  if (chat_template.Contains("<function=")) {
    tags.calls = CallForm::kParameters;
    tags.name_begin = "<function=";
    tags.name_end = ">";
    tags.function_end = "</function>";
    tags.key_begin = "<parameter=";
    tags.key_end = ">";
    tags.value_end = "</parameter>";
  } else if (chat_template.Contains("<arg_key>")) {
    tags.calls = CallForm::kParameters;
    tags.key_begin = "<arg_key>";
    tags.key_end = "</arg_key>";
    tags.value_begin = "<arg_value>";
    tags.value_end = "</arg_value>";
  }
  return tags;
}

}  // namespace

std::vector<std::string> AnswerSyntax::Markers() const {
  if (calls == CallForm::kChannels) {
    return {"<|start|>", "<|channel|>", "<|message|>", "<|constrain|>",
            "<|end|>",   "<|call|>",    "<|return|>"};
  }
  std::vector<std::string> markers;
  for (const std::string& marker :
       {section_begin, section_end, call_begin, separator, call_end, key_begin, key_end,
        value_begin, value_end, think_begin, think_end}) {
    if (marker.size() > 1) markers.push_back(marker);
  }
  return markers;
}

AnswerSyntax SyntaxOf(const text::ChatTemplate& chat_template, const text::Tokenizer& tokenizer) {
  AnswerSyntax syntax = CallsOf(chat_template);
  const bool has_tokens = tokenizer.IdOf(kThinkBegin) && tokenizer.IdOf(kThinkEnd);
  if (syntax.calls != CallForm::kChannels && (has_tokens || chat_template.Contains(kThinkEnd))) {
    syntax.think_begin = kThinkBegin;
    syntax.think_end = kThinkEnd;
  }
  return syntax;
}

bool BeginsReasoning(const AnswerSyntax& syntax, std::string_view tail) {
  if (!syntax.thinks()) return false;
  const size_t last = tail.find_last_not_of(" \n");
  return last != std::string_view::npos && tail.substr(0, last + 1).ends_with(syntax.think_begin);
}

}  // namespace convene::openai
