// The body of a request for text, /v1/chat/completions or /v1/completions, wherever it came from: a
// line of a batch or a server. It reads untrusted JSON, and neither tokenizes nor knows a model.
// Format: https://platform.openai.com/docs/api-reference/chat/create, with the fields of vLLM that
// OpenAI's API lacks (top_k, min_p, repetition_penalty, ignore_eos, chat_template_kwargs).
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "base/result.h"
#include "engine/request.h"
#include "openai/body_fields.h"

namespace convene::openai {

inline constexpr int kMaxAnswers = 128;  // `n`, as at OpenAI

// Tokens that a completion has where the body does not say, as at OpenAI.
inline constexpr int kDefaultCompletionTokens = 16;

using Prompt = std::variant<std::string, std::vector<int32_t>>;  // text or token ids

// Whether the answer may or must call tools.
enum class ToolChoice : uint8_t { kAuto, kNone, kRequired, kNamed };

enum class TextFormat : uint8_t { kText, kJsonObject, kJsonSchema };

// Where a message comes from, in /v1/responses.
struct MessageItems {
  static constexpr int kInstructions = -1;
  static constexpr int kWholeInput = -2;  // an input that is a text

  int item = kInstructions;  // of the input, that the message is or begins with
  std::vector<int> calls;    // of each of its calls
};

struct GenerationBody {
  bool is_chat = false;      // /v1/chat/completions or /v1/responses; otherwise /v1/completions
  bool is_response = false;  // /v1/responses
  nlohmann::ordered_json repeated;  // of its fields in the response
  std::string model;                // as the body names it; empty: not at all
  // Of a chat.
  nlohmann::ordered_json messages;
  std::vector<MessageItems> message_items;  // of each message, in /v1/responses
  nlohmann::ordered_json tools;             // null: none, or none may be called
  ToolChoice tool_choice = ToolChoice::kAuto;
  std::string named_tool;                 // that must be called: one of `tools`
  bool parallel_calls = true;             // more calls than one
  TextFormat format = TextFormat::kText;  // of the content
  nlohmann::ordered_json schema;          // of kJsonSchema
  // chat_template_kwargs, and reasoning_effort as one of them; null: none
  nlohmann::ordered_json template_variables;
  // Of a completion, at least one; of a line of a batch exactly one.
  std::vector<Prompt> prompts;
  // All but the prompt; fields that the body does not set keep the values of the defaults.
  engine::Request request;
  int num_answers = 1;   // to each prompt
  int64_t priority = 0;  // a server answers lower ones first
  bool streams = false;
  bool streams_usage = false;  // a last chunk with the usage
};

// `defaults`: what the model does where the body says nothing, the seed too. Errors name the first
// field that is unknown, not supported, of the wrong type or out of range.
std::variant<GenerationBody, FieldError> ParseGenerationBody(
    const nlohmann::ordered_json& body, bool is_chat, BodyOrigin origin,
    const engine::SamplingOptions& defaults);

}  // namespace convene::openai
