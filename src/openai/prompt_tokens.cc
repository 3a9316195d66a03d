#include "openai/prompt_tokens.h"

#include <utility>

#include "openai/messages.h"
#include "openai/template_coverage.h"

namespace convene::openai {
namespace {

using Ids = std::vector<int32_t>;

std::variant<Ids, FieldError> ChatTokens(const GenerationBody& body,
                                         const text::Tokenizer& tokenizer,
                                         const Result<text::ChatTemplate>& chat_template) {
  constexpr const char* kField = "messages";
  if (!chat_template) return FieldError{chat_template.error(), kField};
  text::RenderOptions options;
  options.add_generation_prompt = true;
  options.tools = body.tools;
  options.variables = body.template_variables;
  if (auto unread = CheckOptionsAreRead(*chat_template, options)) return *std::move(unread);
  const Result<std::string> rendered = RenderMessages(*chat_template, body.messages, options);
  if (!rendered) return FieldError{rendered.error(), kField};
  // The template has written the special tokens itself.
  Result<Ids> tokens = tokenizer.Encode(*rendered, {.add_special_tokens = false});
  if (!tokens) return FieldError{tokens.error(), kField};
  return *std::move(tokens);
}

}  // namespace

std::variant<std::vector<Ids>, FieldError> PromptTokens(
    const GenerationBody& body, const text::Tokenizer& tokenizer,
    const Result<text::ChatTemplate>& chat_template) {
  if (body.is_chat) {
    auto of_chat = ChatTokens(body, tokenizer, chat_template);
    if (auto* wrong = std::get_if<FieldError>(&of_chat)) return std::move(*wrong);
    return std::vector<Ids>{std::get<Ids>(std::move(of_chat))};
  }
  std::vector<Ids> tokens;
  for (const Prompt& prompt : body.prompts) {
    if (const auto* ids = std::get_if<Ids>(&prompt)) {
      tokens.push_back(*ids);
      continue;
    }
    Result<Ids> of_text = tokenizer.Encode(std::get<std::string>(prompt));
    if (!of_text) return FieldError{of_text.error(), "prompt"};
    tokens.push_back(*std::move(of_text));
  }
  return tokens;
}

}  // namespace convene::openai
