// Requests about tokens alone, in the form of vLLM: /tokenize and /detokenize. No model is needed.
#pragma once

#include <nlohmann/json.hpp>
#include <variant>

#include "base/result.h"
#include "openai/body_fields.h"
#include "text/chat_template.h"
#include "text/tokenizer.h"

namespace convene::openai {

using JsonOrError = std::variant<nlohmann::ordered_json, FieldError>;

// {"prompt": TEXT} or {"messages": [...], "tools": [...], "add_generation_prompt" (true)}, with
// "add_special_tokens" (true for a prompt, false for messages) and "return_token_strs" (false), to
// {"count", "max_model_len", "tokens", "token_strs"}. Errors: those that the same messages and
// tools have in a chat. Threads may call it at the same time; "model" is the caller's to read.
JsonOrError AnswerTokenize(const nlohmann::ordered_json& body, const text::Tokenizer& tokenizer,
                           const Result<text::ChatTemplate>& chat_template, int context);

// {"tokens": [...]} to {"prompt": TEXT}.
JsonOrError AnswerDetokenize(const nlohmann::ordered_json& body, const text::Tokenizer& tokenizer);

}  // namespace convene::openai
