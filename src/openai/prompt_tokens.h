// The tokens of a request's prompts: of a chat by the model's template, of a completion as it is.
// What comes of them is the engine's matter.
#pragma once

#include <cstdint>
#include <string>
#include <variant>
#include <vector>

#include "base/result.h"
#include "openai/body_fields.h"
#include "openai/generation_body.h"
#include "text/chat_template.h"
#include "text/tokenizer.h"

namespace convene::openai {

// One list of ids for each prompt; a chat is one prompt. `chat_template` may be an error, which
// only a chat meets. Errors: the template refuses the messages or has no tools, text that the
// tokenizer refuses. Threads may call it at the same time.
std::variant<std::vector<std::vector<int32_t>>, FieldError> PromptTokens(
    const GenerationBody& body, const text::Tokenizer& tokenizer,
    const Result<text::ChatTemplate>& chat_template);

}  // namespace convene::openai
