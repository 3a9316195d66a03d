// What has been generated for a request, as JSON in the forms of OpenAI's API: the body of an
// answer, and the lines of a batch's results. Requests are read in batch_line.h.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "engine/request.h"
#include "openai/batch_line.h"
#include "text/tokenizer.h"

namespace convene::openai {

struct Answer {
  size_t num_prompt_tokens = 0;
  std::string text;
  std::vector<engine::GeneratedToken> tokens;  // without an end-of-text token
  std::optional<engine::FinishReason> finish;
};

// A chat.completion or text_completion, as the request's url has it, with log probabilities where
// it asks for them. Its id is made of `number`; `created` is in seconds since 1970.
nlohmann::ordered_json AnswerBody(const text::Tokenizer& tokenizer, const BatchLine& request,
                                  const Answer& answer, int64_t number, int64_t created);

// The result of the line with that number (from 1): its answer, or why it has none. `code` is
// "invalid_request" or "server_error".
nlohmann::ordered_json BatchAnswer(int64_t line_number, const BatchLine& request,
                                   nlohmann::ordered_json body);
nlohmann::ordered_json BatchError(int64_t line_number, const std::optional<std::string>& custom_id,
                                  const char* code, const std::string& message);

}  // namespace convene::openai
