#include "openai/token_requests.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <limits>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/closest_name.h"
#include "base/quote.h"
#include "openai/field_reader.h"
#include "openai/messages.h"
#include "openai/template_coverage.h"
#include "openai/tool_fields.h"

namespace convene::openai {
namespace {

using nlohmann::ordered_json;

FieldStatus CheckKnown(const ordered_json& body, const std::vector<std::string>& known) {
  for (const auto& [name, value] : body.items()) {
    if (std::ranges::find(known, name) != known.end()) continue;
    return FieldError{Error{fmt::format("{} is not known, so leave it out{}", Printable(name),
                                        DidYouMean(name, known))},
                      name};
  }
  return std::nullopt;
}

// The text of the body, of its prompt or its messages.
std::variant<std::string, FieldError> TextOf(FieldReader& fields,
                                             const Result<text::ChatTemplate>& chat_template) {
  const ordered_json* messages = fields.Find("messages");
  if (messages == nullptr) {
    const auto prompt = fields.String("prompt");
    for (const char* name : {"tools", "add_generation_prompt", "chat_template_kwargs"}) {
      if (fields.Find(name) != nullptr) fields.Fail(name, "goes with messages alone");
    }
    if (!prompt) fields.Fail("prompt", "must be a string, or messages an array");
    if (fields.status()) return *fields.status();
    return *prompt;
  }
  if (fields.Find("prompt") != nullptr) {
    return FieldError{Error{"give prompt or messages, not both"}, "prompt"};
  }
  if (!messages->is_array() || messages->empty() ||
      !std::ranges::all_of(*messages, [](const ordered_json& m) { return m.is_object(); })) {
    return FieldError{Error{"messages must be an array of at least one object"}, "messages"};
  }
  if (!chat_template) return FieldError{chat_template.error(), "messages"};
  text::RenderOptions options;
  options.add_generation_prompt = fields.Bool("add_generation_prompt").value_or(true);
  ReadTools(fields, &options.tools);
  if (const ordered_json* variables = fields.Find("chat_template_kwargs")) {
    options.variables = *variables;
    if (!variables->is_object()) fields.Fail("chat_template_kwargs", "must be an object");
  }
  if (fields.status()) return *fields.status();
  if (auto unread = CheckOptionsAreRead(*chat_template, options)) fields.Fail(*unread);
  if (fields.status()) return *fields.status();
  Result<std::string> rendered = RenderMessages(*chat_template, *messages, options);
  if (!rendered) return FieldError{rendered.error(), "messages"};
  return *std::move(rendered);
}

}  // namespace

JsonOrError AnswerTokenize(const ordered_json& body, const text::Tokenizer& tokenizer,
                           const Result<text::ChatTemplate>& chat_template, int context) {
  if (!body.is_object()) return FieldError{Error{"the body must be a JSON object"}, ""};
  if (auto wrong = CheckKnown(
          body, {"model", "prompt", "messages", "tools", "add_special_tokens",
                 "add_generation_prompt", "chat_template_kwargs", "return_token_strs"})) {
    return *std::move(wrong);
  }
  FieldReader fields(body, "");
  const auto text = TextOf(fields, chat_template);
  const bool adds_special =
      fields.Bool("add_special_tokens").value_or(fields.Find("messages") == nullptr);
  const bool returns_strings = fields.Bool("return_token_strs").value_or(false);
  if (fields.status()) return *fields.status();
  if (const auto* wrong = std::get_if<FieldError>(&text)) return *wrong;
  const Result<std::vector<int32_t>> tokens =
      tokenizer.Encode(std::get<std::string>(text), {.add_special_tokens = adds_special});
  if (!tokens) return FieldError{tokens.error(), "prompt"};
  ordered_json answer = {
      {"count", tokens->size()}, {"max_model_len", context}, {"tokens", *tokens}};
  answer["token_strs"] = nullptr;
  if (!returns_strings) return answer;
  answer["token_strs"] = ordered_json::array();
  for (const int32_t token : *tokens) {
    const Result<std::string> spelling = tokenizer.TextOf(token);
    answer["token_strs"].push_back(spelling ? *spelling : std::string());
  }
  return answer;
}

JsonOrError AnswerDetokenize(const ordered_json& body, const text::Tokenizer& tokenizer) {
  constexpr const char* kWanted = "tokens must be an array of token ids";
  if (!body.is_object()) return FieldError{Error{"the body must be a JSON object"}, ""};
  if (auto wrong = CheckKnown(body, {"model", "tokens"})) return *std::move(wrong);
  const auto found = body.find("tokens");
  if (found == body.end() || !found->is_array()) return FieldError{Error{kWanted}, "tokens"};
  std::vector<int32_t> ids;
  for (const ordered_json& id : *found) {
    if (!id.is_number_integer() || id.get<double>() < 0 ||
        id.get<double>() > std::numeric_limits<int32_t>::max()) {
      return FieldError{Error{kWanted}, "tokens"};
    }
    ids.push_back(id.get<int32_t>());
  }
  Result<std::string> text = tokenizer.Decode(ids, /*skip_special_tokens=*/false);
  if (!text) return FieldError{text.error(), "tokens"};
  return ordered_json{{"prompt", *std::move(text)}};
}

}  // namespace convene::openai
