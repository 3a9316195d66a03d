#include "server/prepare.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <span>
#include <utility>

#include "base/json.h"
#include "base/quote.h"
#include "openai/field_reader.h"
#include "openai/prompt_tokens.h"
#include "openai/responses_body.h"
#include "openai/token_requests.h"
#include "server/exchange.h"

namespace convene::server {
namespace {

using nlohmann::ordered_json;
using openai::ApiError;

constexpr size_t kMaxChoices = 1024;  // of one request

std::variant<ordered_json, ApiError> ParseObject(std::string_view body) {
  Result<ordered_json> json = ParseOrderedJson(body);
  if (!json) {
    return openai::InvalidRequest(
        fmt::format("the body cannot be read as JSON: {}", json.error().message));
  }
  if (!json->is_object()) return openai::InvalidRequest("the body must be a JSON object");
  return *std::move(json);
}

// The end of a prompt as text, special tokens too: whether the model is to think is written there.
std::string TailOf(const ServedModel& model, std::span<const int32_t> prompt) {
  constexpr size_t kMostTokens = 16;
  const Result<std::string> tail = model.tokenizer->Decode(
      prompt.last(std::min(prompt.size(), kMostTokens)), /*skip_special_tokens=*/false);
  return tail ? *tail : std::string();
}

// The field that the engine does not take by itself.
std::optional<std::string> FieldAtFault(const ServedModel& model, const engine::Request& choice,
                                        const char* prompt_field) {
  engine::Request part{.prompt = choice.prompt};
  if (!model.check(part)) return prompt_field;
  part.stop = choice.stop;
  if (!model.check(part)) return "stop";
  part.stop.clear();
  part.sampling.logit_bias = choice.sampling.logit_bias;
  if (!model.check(part)) return "logit_bias";
  return std::nullopt;
}

// Whether the engine would take the choices of each prompt, which differ in their seeds alone. It
// is asked of one of them: as many copies of what is too long may be more than the memory.
std::optional<ApiError> CheckPrompts(const ServedModel& model, const engine::Request& request,
                                     std::span<const std::vector<int32_t>> prompts,
                                     const char* prompt_field) {
  for (const std::vector<int32_t>& prompt : prompts) {
    engine::Request choice = request;
    choice.prompt = prompt;
    const Status valid = model.check(choice);
    if (valid) continue;
    ApiError error = openai::ToApiError(valid.error());
    error.param = FieldAtFault(model, choice, prompt_field);
    if (std::ssize(prompt) >= model.context) error.code = "context_length_exceeded";
    return error;
  }
  return std::nullopt;
}

// An answer that did not say how long it may be is as long as has room.
std::optional<ApiError> LimitLogprobs(const ServedModel& model,
                                      std::span<const std::vector<int32_t>> prompts,
                                      openai::GenerationBody& body) {
  if (!body.request.num_logprobs || body.streams || prompts.empty()) return std::nullopt;
  const int64_t num_answers = std::ssize(prompts) * body.num_answers;
  const int64_t fitting = kMaxLogprobs / (num_answers * (1 + *body.request.num_logprobs));
  if (!body.request.max_tokens && fitting > 0 && fitting < model.context) {
    body.request.max_tokens = static_cast<int>(fitting);
  }
  int64_t num_tokens = 0;
  for (const std::vector<int32_t>& prompt : prompts) {
    const int64_t room = std::max<int64_t>(1, model.context - std::ssize(prompt));
    const int64_t most = std::min<int64_t>(body.request.max_tokens.value_or(model.context), room);
    num_tokens += body.num_answers * most;
  }
  const int64_t num_logprobs = num_tokens * (1 + *body.request.num_logprobs);
  if (num_logprobs <= kMaxLogprobs) return std::nullopt;
  const char* field = body.is_chat ? "top_logprobs" : "logprobs";
  ApiError error = openai::InvalidRequest(fmt::format(
      "the answer may have {} tokens with {} log probabilities each, {} in all; an answer that is "
      "not streamed has at most {}: lower max_tokens, n or {}, or set stream to true",
      num_tokens, 1 + *body.request.num_logprobs, num_logprobs, kMaxLogprobs, field));
  error.param = field;
  return error;
}

}  // namespace

std::optional<ApiError> CheckModelName(const ServedModel& model, const std::string& name) {
  if (name.empty() || name == model.name) return std::nullopt;
  return ApiError{.status = 404,
                  .message = fmt::format("the model {} is not here; this server has {}",
                                         Quote(name), Quote(model.name)),
                  .type = "invalid_request_error",
                  .param = "model",
                  .code = "model_not_found"};
}

std::variant<PreparedRequest, ApiError> PrepareGeneration(const ServedModel& model,
                                                          std::string_view body, Api api,
                                                          uint64_t seed, bool keeps_prompt) {
  auto json = ParseObject(body);
  if (auto* error = std::get_if<ApiError>(&json)) return std::move(*error);
  engine::SamplingOptions defaults = model.defaults;
  defaults.seed = seed;
  const bool is_chat = api != Api::kCompletions;
  const char* prompt_field = api == Api::kResponses ? "input" : is_chat ? "messages" : "prompt";
  PreparedRequest prepared;
  const auto refused = [&](openai::FieldError wrong) {
    if (api != Api::kResponses) return openai::ToApiError(wrong);
    return openai::ToApiError(openai::InResponses(std::move(wrong), prepared.body.message_items));
  };
  auto parsed = api == Api::kResponses
                    ? openai::ParseResponsesBody(std::get<ordered_json>(json), defaults)
                    : openai::ParseGenerationBody(std::get<ordered_json>(json), is_chat,
                                                  openai::BodyOrigin::kServer, defaults);
  if (const auto* wrong = std::get_if<openai::FieldError>(&parsed)) {
    return openai::ToApiError(*wrong);
  }
  prepared.body = std::get<openai::GenerationBody>(std::move(parsed));
  openai::GenerationBody& request = prepared.body;
  if (auto error = CheckModelName(model, request.model)) return *std::move(error);
  auto tokens = openai::PromptTokens(request, *model.tokenizer, model.chat_template);
  if (auto* wrong = std::get_if<openai::FieldError>(&tokens)) return refused(std::move(*wrong));
  const auto& prompts = std::get<0>(tokens);
  if (prompts.size() * static_cast<size_t>(request.num_answers) > kMaxChoices) {
    return openai::InvalidRequest(fmt::format("{} prompts with {} answers each are more than {}",
                                              prompts.size(), request.num_answers, kMaxChoices));
  }
  if (is_chat) {
    auto reading = model.forms->Apply(TailOf(model, prompts.front()), &request);
    if (auto* wrong = std::get_if<openai::FieldError>(&reading)) return refused(std::move(*wrong));
    prepared.reading = std::get<openai::AnswerReading>(std::move(reading));
  }
  if (!request.request.max_tokens) request.request.max_tokens = model.max_new_tokens;
  if (auto error = CheckPrompts(model, request.request, prompts, prompt_field)) {
    return *std::move(error);
  }
  if (auto error = LimitLogprobs(model, prompts, request)) return *std::move(error);
  for (const std::vector<int32_t>& prompt : prompts) {
    for (int i = 0; i < request.num_answers; ++i) {
      engine::Request choice = request.request;
      choice.prompt = prompt;
      choice.sampling.seed += static_cast<uint64_t>(i);
      prepared.prompt_sizes.push_back(prompt.size());
      prepared.choices.push_back(std::move(choice));
    }
  }
  if (keeps_prompt) {
    const ordered_json& all = std::get<ordered_json>(json);
    prepared.prompt_text = all.value(prompt_field, ordered_json()).dump();
  }
  prepared.priority = request.priority;
  request.messages = nullptr;
  request.tools = nullptr;
  request.schema = nullptr;
  request.prompts.clear();
  return prepared;
}

Response AnswerTokenRequest(const ServedModel& model, std::string_view body, bool is_tokenize) {
  const auto json = ParseObject(body);
  if (const auto* error = std::get_if<ApiError>(&json)) return ErrorResponse(*error);
  const auto& request = std::get<ordered_json>(json);
  openai::FieldReader fields(request, "");
  const std::string name = fields.String("model").value_or("");
  if (fields.status()) return ErrorResponse(openai::ToApiError(*fields.status()));
  if (const auto error = CheckModelName(model, name)) return ErrorResponse(*error);
  const auto answer = is_tokenize ? openai::AnswerTokenize(request, *model.tokenizer,
                                                           model.chat_template, model.context)
                                  : openai::AnswerDetokenize(request, *model.tokenizer);
  if (const auto* wrong = std::get_if<openai::FieldError>(&answer)) {
    return ErrorResponse(openai::ToApiError(*wrong));
  }
  return {.body = std::get<ordered_json>(answer).dump(-1, ' ', false,
                                                      ordered_json::error_handler_t::replace) +
                  "\n"};
}

}  // namespace convene::server
