#include "openai/prompt_tokens.h"

#include <utility>
#include <variant>

#include "openai/messages.h"

namespace convene::openai {
namespace {

Result<std::vector<int32_t>> ChatTokens(const GenerationBody& body,
                                        const text::Tokenizer& tokenizer,
                                        const Result<text::ChatTemplate>& chat_template) {
  if (!chat_template) return chat_template.error();
  text::RenderOptions options;
  options.add_generation_prompt = true;
  options.tools = body.tools;
  options.variables = body.template_variables;
  const Result<std::string> rendered = RenderMessages(*chat_template, body.messages, options);
  if (!rendered) return rendered.error();
  // The template has written the special tokens itself.
  return tokenizer.Encode(*rendered, {.add_special_tokens = false});
}

}  // namespace

Result<std::vector<std::vector<int32_t>>> PromptTokens(
    const GenerationBody& body, const text::Tokenizer& tokenizer,
    const Result<text::ChatTemplate>& chat_template) {
  std::vector<std::vector<int32_t>> tokens;
  if (body.is_chat) {
    Result<std::vector<int32_t>> of_chat = ChatTokens(body, tokenizer, chat_template);
    if (!of_chat) return of_chat.error();
    tokens.push_back(*std::move(of_chat));
    return tokens;
  }
  for (const Prompt& prompt : body.prompts) {
    if (const auto* ids = std::get_if<std::vector<int32_t>>(&prompt)) {
      tokens.push_back(*ids);
      continue;
    }
    Result<std::vector<int32_t>> of_text = tokenizer.Encode(std::get<std::string>(prompt));
    if (!of_text) return of_text.error();
    tokens.push_back(*std::move(of_text));
  }
  return tokens;
}

}  // namespace convene::openai
