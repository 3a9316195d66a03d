// One line of an OpenAI batch file as a request. It reads untrusted bytes, and neither tokenizes
// nor knows a model. Format: https://platform.openai.com/docs/guides/batch
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "base/result.h"
#include "engine/request.h"

namespace convene::openai {

struct BatchLine {
  std::string custom_id;
  bool is_chat = false;  // /v1/chat/completions; otherwise /v1/completions
  std::string model;     // as the line names it; only echoed
  // Of a chat.
  nlohmann::ordered_json messages;
  nlohmann::ordered_json tools;  // null: none
  // Of a completion: text or token ids.
  std::variant<std::string, std::vector<int32_t>> prompt;
  // All but the prompt; fields that the line does not set keep the values of `defaults`.
  engine::Request request;
};

// A line without seed gets SeedOf its custom_id. Errors: not JSON, a field that is missing, of the
// wrong type or out of range, one that convene does not support (n above 1, streaming, ...), by its
// name.
Result<BatchLine> ParseBatchLine(std::string_view line, const engine::SamplingOptions& defaults);

// A seed of the line's own, so that equal prompts are answered differently where tokens are
// sampled, and a rerun answers as before: the FNV-1a hash (64 bit) of the bytes of custom_id.
uint64_t SeedOf(std::string_view custom_id);

// The custom_id of a line, as far as it can be read: for error results and for resuming.
std::optional<std::string> CustomIdOf(std::string_view line);

}  // namespace convene::openai
