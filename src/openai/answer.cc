#include "openai/answer.h"

#include <fmt/format.h>

#include <utility>

namespace convene::openai {
namespace {

using nlohmann::ordered_json;

// A token in the logprobs of an answer.
ordered_json TokenJson(const text::Tokenizer& tokenizer, int32_t token, double logprob) {
  const Result<std::string> bytes = tokenizer.BytesOf(token);
  ordered_json json = {{"token", bytes ? *bytes : ""}, {"logprob", logprob}};
  json["bytes"] = ordered_json::array();
  if (bytes) {
    for (const char byte : *bytes) json["bytes"].push_back(static_cast<uint8_t>(byte));
  }
  return json;
}

ordered_json ChatLogprobs(const text::Tokenizer& tokenizer, const Answer& answer) {
  ordered_json content = ordered_json::array();
  for (const engine::GeneratedToken& token : answer.tokens) {
    ordered_json entry = TokenJson(tokenizer, token.token, token.logprob);
    entry["top_logprobs"] = ordered_json::array();
    for (const engine::TokenLogprob& top : token.top) {
      entry["top_logprobs"].push_back(TokenJson(tokenizer, top.token, top.logprob));
    }
    content.push_back(std::move(entry));
  }
  return {{"content", std::move(content)}};
}

ordered_json CompletionLogprobs(const text::Tokenizer& tokenizer, const Answer& answer) {
  ordered_json logprobs = {{"tokens", ordered_json::array()},
                           {"token_logprobs", ordered_json::array()},
                           {"top_logprobs", ordered_json::array()},
                           {"text_offset", ordered_json::array()}};
  const auto text_of = [&](int32_t token) {
    const Result<std::string> bytes = tokenizer.BytesOf(token);
    return bytes ? *bytes : std::string();
  };
  size_t offset = 0;
  for (const engine::GeneratedToken& token : answer.tokens) {
    const std::string text = text_of(token.token);
    logprobs["tokens"].push_back(text);
    logprobs["token_logprobs"].push_back(token.logprob);
    ordered_json top = ordered_json::object();
    for (const engine::TokenLogprob& other : token.top) top[text_of(other.token)] = other.logprob;
    logprobs["top_logprobs"].push_back(std::move(top));
    logprobs["text_offset"].push_back(offset);
    offset += text.size();
  }
  return logprobs;
}

}  // namespace

ordered_json AnswerBody(const text::Tokenizer& tokenizer, const BatchLine& request,
                        const Answer& answer, int64_t number, int64_t created) {
  ordered_json choice = {{"index", 0}};
  if (request.is_chat) {
    choice["message"] = {{"role", "assistant"}, {"content", answer.text}};
  } else {
    choice["text"] = answer.text;
  }
  choice["logprobs"] = nullptr;
  if (request.request.num_logprobs) {
    choice["logprobs"] =
        request.is_chat ? ChatLogprobs(tokenizer, answer) : CompletionLogprobs(tokenizer, answer);
  }
  choice["finish_reason"] = answer.finish == engine::FinishReason::kStop ? "stop" : "length";
  return {{"id", fmt::format("{}-{}", request.is_chat ? "chatcmpl" : "cmpl", number)},
          {"object", request.is_chat ? "chat.completion" : "text_completion"},
          {"created", created},
          {"model", request.model},
          {"choices", ordered_json::array({std::move(choice)})},
          {"usage",
           {{"prompt_tokens", answer.num_prompt_tokens},
            {"completion_tokens", answer.tokens.size()},
            {"total_tokens", answer.num_prompt_tokens + answer.tokens.size()}}}};
}

ordered_json BatchAnswer(int64_t line_number, const BatchLine& request, ordered_json body) {
  return {{"id", fmt::format("batch_req_{}", line_number)},
          {"custom_id", request.custom_id},
          {"response",
           {{"status_code", 200},
            {"request_id", fmt::format("req_{}", line_number)},
            {"body", std::move(body)}}},
          {"error", nullptr}};
}

ordered_json BatchError(int64_t line_number, const std::optional<std::string>& custom_id,
                        const char* code, const std::string& message) {
  return {{"id", fmt::format("batch_req_{}", line_number)},
          {"custom_id", custom_id ? ordered_json(*custom_id) : ordered_json(nullptr)},
          {"response", nullptr},
          {"error",
           {{"code", code},
            {"message", fmt::format("line {}: {}", line_number, message)},
            {"line", line_number}}}};
}

}  // namespace convene::openai
