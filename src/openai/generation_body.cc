#include "openai/generation_body.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <limits>
#include <utility>

#include "base/quote.h"
#include "openai/field_reader.h"
#include "openai/tool_fields.h"

namespace convene::openai {
namespace {

using nlohmann::ordered_json;

constexpr int64_t kMaxTokens = std::numeric_limits<int32_t>::max();
constexpr int kMaxTopLogprobs = 20;
constexpr size_t kMaxPrompts = 1024;

void ReadSampling(FieldReader& body, GenerationBody* parsed) {
  engine::GivenSampling given;
  given.temperature = body.Number("temperature", engine::kTemperatures);
  given.top_p = body.Number("top_p", engine::kProbabilities);
  given.min_p = body.Number("min_p", engine::kProbabilities);
  // vLLM writes -1 for all.
  if (const auto top_k = body.Integer("top_k", -1, kMaxTokens)) {
    given.top_k = std::max(0, static_cast<int>(*top_k));
  }
  given.repetition_penalty = body.Number("repetition_penalty", engine::kRepetitionPenalties);
  given.presence_penalty = body.Number("presence_penalty", engine::kAnswerPenalties);
  given.frequency_penalty = body.Number("frequency_penalty", engine::kAnswerPenalties);
  engine::Request& request = parsed->request;
  request.sampling = engine::MergeSampling(request.sampling, given);
  const auto seed = body.Integer("seed", INT64_MIN, INT64_MAX);
  if (seed) request.sampling.seed = static_cast<uint64_t>(*seed);
  request.ignore_eos = body.Bool("ignore_eos").value_or(false);
}

void ReadLimits(FieldReader& body, GenerationBody* parsed) {
  // Two names of one thing.
  const auto old_limit = body.Integer("max_tokens", 1, kMaxTokens);
  const auto limit = body.Integer("max_completion_tokens", 1, kMaxTokens);
  if (limit && old_limit && *limit != *old_limit) {
    body.Fail("max_tokens",
              fmt::format("is {} and max_completion_tokens {}; give one", *old_limit, *limit));
  }
  if (limit || old_limit) {
    parsed->request.max_tokens = static_cast<int>(limit ? *limit : *old_limit);
  }
  parsed->priority = body.Integer("priority", INT32_MIN, INT32_MAX).value_or(0);
  if (const auto count = body.Integer("n", 1, kMaxAnswers)) {
    parsed->num_answers = static_cast<int>(*count);
  }
}

// {"TOKEN ID": BIAS, ...}, in the order of the ids.
void ReadLogitBias(FieldReader& body, engine::SamplingOptions* sampling) {
  const ordered_json* biases = body.Find("logit_bias");
  if (biases == nullptr) return;
  if (!biases->is_object()) {
    return body.Fail("logit_bias", "must be an object of token ids and numbers");
  }
  for (const auto& [name, value] : biases->items()) {
    int32_t token = 0;
    const auto [end, error] = std::from_chars(name.data(), name.data() + name.size(), token);
    if (error != std::errc() || end != name.data() + name.size() || token < 0) {
      return body.Fail("logit_bias",
                       fmt::format("has the key {}; it must be the id of a token", Quote(name)));
    }
    if (!value.is_number() || value.get<double>() < engine::kLogitBiases.min ||
        value.get<double>() > engine::kLogitBiases.max) {
      return body.Fail("logit_bias",
                       fmt::format("of token {} must be a number from {} to {}", token,
                                   engine::kLogitBiases.min, engine::kLogitBiases.max));
    }
    sampling->logit_bias.push_back({token, value.get<float>()});
  }
  std::ranges::sort(sampling->logit_bias, {}, &engine::TokenBias::token);
  const auto twice =
      std::ranges::adjacent_find(sampling->logit_bias, {}, &engine::TokenBias::token);
  if (twice != sampling->logit_bias.end()) {  // "7" and "07"
    body.Fail("logit_bias", fmt::format("names token {} twice", twice->token));
  }
}

void ReadStop(FieldReader& body, engine::Request* request) {
  constexpr const char* kWanted = "must be a string or an array of strings";
  const ordered_json* stop = body.Find("stop");
  if (stop == nullptr) return;
  if (stop->is_string()) {
    request->stop.push_back(stop->get<std::string>());
  } else if (stop->is_array()) {
    for (const ordered_json& text : *stop) {
      if (!text.is_string()) return body.Fail("stop", kWanted);
      request->stop.push_back(text.get<std::string>());
    }
  } else {
    body.Fail("stop", kWanted);
  }
}

void ReadStreaming(FieldReader& body, BodyOrigin origin, GenerationBody* parsed) {
  parsed->streams = body.Bool("stream").value_or(false);
  parsed->request.reports_progress = body.Bool("return_progress").value_or(false);
  if (parsed->request.reports_progress && !parsed->streams) {
    return body.Fail("return_progress", "needs stream to be true");
  }
  const ordered_json* options = body.Find("stream_options");
  if (options == nullptr || origin == BodyOrigin::kBatchLine) return;
  if (!options->is_object()) return body.Fail("stream_options", "must be an object");
  if (!parsed->streams) return body.Fail("stream_options", "needs stream to be true");
  FieldReader reader(*options, "stream_options.");
  parsed->streams_usage = reader.Bool("include_usage").value_or(false);
  for (const auto& [name, value] : options->items()) {
    // Padding against those who watch the lengths of packets: it says nothing of the answer.
    if (name == "include_usage" || name == "include_obfuscation" || value.is_null()) continue;
    body.Fail("stream_options",
              fmt::format("has the field {}, which is not known; it may have include_usage",
                          Quote(name)));
  }
  if (reader.status()) body.Fail(*reader.status());
}

// {"type": "text"}, {"type": "json_object"} or {"type": "json_schema", "json_schema": {"name",
// "schema", "strict", "description"}}.
void ReadFormat(FieldReader& body, GenerationBody* parsed) {
  const ordered_json* format = body.Find("response_format");
  if (format == nullptr) return;
  const ordered_json type =
      format->is_object() ? format->value("type", ordered_json()) : ordered_json();
  const bool has_schema = type == "json_schema";
  if (type != "text" && type != "json_object" && !has_schema) {
    return body.Fail("response_format",
                     "must be an object of the type text, json_object or json_schema");
  }
  for (const auto& [name, value] : format->items()) {
    if (name == "type" || (name == "json_schema" && has_schema)) continue;
    return body.Fail("response_format", fmt::format("has the field {}, which is not known beside "
                                                    "the type {}",
                                                    Quote(name), type.get<std::string>()));
  }
  if (type == "text") return;
  if (parsed->tool_choice == ToolChoice::kRequired || parsed->tool_choice == ToolChoice::kNamed) {
    return body.Fail("response_format",
                     "asks for JSON as the content, and tool_choice for a call instead of content: "
                     "leave one out");
  }
  parsed->format = has_schema ? TextFormat::kJsonSchema : TextFormat::kJsonObject;
  if (!has_schema) return;
  const auto found = format->find("json_schema");
  if (found == format->end() || !found->is_object() || !found->contains("schema") ||
      !(*found)["schema"].is_object()) {
    return body.Fail("response_format", "needs json_schema.schema, an object");
  }
  for (const auto& [name, value] : found->items()) {
    if (name == "schema" || name == "name" || name == "strict" || name == "description") continue;
    return body.Fail("response_format",
                     fmt::format("has the field json_schema.{}, which is not known", name));
  }
  const ordered_json strict = found->value("strict", ordered_json());
  if (!strict.is_null() && !strict.is_boolean()) {
    return body.Fail("response_format", "must have true or false as json_schema.strict");
  }
  parsed->schema = (*found)["schema"];
}

void ReadChat(FieldReader& body, BodyOrigin origin, GenerationBody* parsed) {
  const ordered_json* messages = body.Find("messages");
  if (messages == nullptr || !messages->is_array() || messages->empty()) {
    return body.Fail("messages", "must be an array of at least one message");
  }
  for (const ordered_json& message : *messages) {
    if (!message.is_object() || !message.contains("role") || !message["role"].is_string()) {
      return body.Fail("messages", "must have objects alone, each with a role");
    }
  }
  parsed->messages = *messages;
  ReadTools(body, &parsed->tools);
  ReadToolChoice(body, origin, parsed);
  if (origin == BodyOrigin::kServer) ReadFormat(body, parsed);
  if (const ordered_json* variables = body.Find("chat_template_kwargs")) {
    if (!variables->is_object()) return body.Fail("chat_template_kwargs", "must be an object");
    if (!variables->empty()) parsed->template_variables = *variables;
  }
  if (const ordered_json* effort = body.Find("reasoning_effort")) {
    if (!effort->is_string()) return body.Fail("reasoning_effort", "must be a string");
    ordered_json& variable = parsed->template_variables["reasoning_effort"];
    if (!variable.is_null() && variable != *effort) {
      return body.Fail("reasoning_effort", "is another one in chat_template_kwargs");
    }
    variable = *effort;
  }
  const bool wants_logprobs = body.Bool("logprobs").value_or(false);
  const auto top = body.Integer("top_logprobs", 0, kMaxTopLogprobs);
  if (top && !wants_logprobs) return body.Fail("top_logprobs", "needs logprobs to be true");
  if (wants_logprobs) parsed->request.num_logprobs = static_cast<int>(top.value_or(0));
}

std::optional<std::vector<int32_t>> TokenIds(const ordered_json& array) {
  std::vector<int32_t> ids;
  for (const ordered_json& id : array) {
    if (!id.is_number_integer() || id.get<double>() < 0 ||
        id.get<double>() > static_cast<double>(kMaxTokens)) {
      return std::nullopt;
    }
    ids.push_back(id.get<int32_t>());
  }
  if (ids.empty()) return std::nullopt;
  return ids;
}

// A string, token ids, or for a server arrays of either.
bool ReadPrompts(const ordered_json& prompt, BodyOrigin origin, std::vector<Prompt>* prompts) {
  if (prompt.is_string()) {
    prompts->emplace_back(prompt.get<std::string>());
    return true;
  }
  if (!prompt.is_array()) return false;
  if (auto ids = TokenIds(prompt)) {
    prompts->emplace_back(*std::move(ids));
    return true;
  }
  if (origin == BodyOrigin::kBatchLine || prompt.size() > kMaxPrompts) return false;
  for (const ordered_json& one : prompt) {
    if (one.is_string()) {
      prompts->emplace_back(one.get<std::string>());
      continue;
    }
    auto ids = one.is_array() ? TokenIds(one) : std::nullopt;
    if (!ids) return false;
    prompts->emplace_back(*std::move(ids));
  }
  return !prompts->empty();
}

void ReadCompletion(FieldReader& body, BodyOrigin origin, GenerationBody* parsed) {
  const auto logprobs = body.Integer("logprobs", 0, kMaxTopLogprobs);
  if (logprobs) parsed->request.num_logprobs = static_cast<int>(*logprobs);
  parsed->request.continues_prompt = true;
  if (!parsed->request.max_tokens) parsed->request.max_tokens = kDefaultCompletionTokens;
  const ordered_json* prompt = body.Find("prompt");
  if (prompt != nullptr && ReadPrompts(*prompt, origin, &parsed->prompts)) return;
  body.Fail("prompt", origin == BodyOrigin::kBatchLine
                          ? "must be one string or an array of token ids"
                          : "must be a string, an array of token ids, or an array of at most "
                            "1024 of these");
}

}  // namespace

std::variant<GenerationBody, FieldError> ParseGenerationBody(
    const ordered_json& body, bool is_chat, BodyOrigin origin,
    const engine::SamplingOptions& defaults) {
  GenerationBody parsed;
  parsed.is_chat = is_chat;
  parsed.request.sampling = defaults;
  if (FieldStatus wrong = CheckFields(body, is_chat, origin)) return *std::move(wrong);
  FieldReader fields(body, NameOf("", origin));
  parsed.model = fields.String("model").value_or("");
  ReadSampling(fields, &parsed);
  ReadLimits(fields, &parsed);
  ReadLogitBias(fields, &parsed.request.sampling);
  ReadStop(fields, &parsed.request);
  ReadStreaming(fields, origin, &parsed);
  if (is_chat) {
    ReadChat(fields, origin, &parsed);
  } else {
    ReadCompletion(fields, origin, &parsed);
  }
  if (fields.status()) return *fields.status();
  return parsed;
}

}  // namespace convene::openai
