#include "openai/answer.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <string_view>
#include <utility>

#include "base/digest.h"
#include "base/utf8.h"

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

using Tokens = std::span<const engine::GeneratedToken>;

ordered_json ChatLogprobs(const text::Tokenizer& tokenizer, Tokens tokens) {
  ordered_json content = ordered_json::array();
  for (const engine::GeneratedToken& token : tokens) {
    ordered_json entry = TokenJson(tokenizer, token.token, token.logprob);
    entry["top_logprobs"] = ordered_json::array();
    for (const engine::TokenLogprob& top : token.top) {
      entry["top_logprobs"].push_back(TokenJson(tokenizer, top.token, top.logprob));
    }
    content.push_back(std::move(entry));
  }
  return {{"content", std::move(content)}, {"refusal", nullptr}};
}

// A token of a completion. One that is no text by itself is spelled as its bytes, as at OpenAI.
std::string Spelling(const text::Tokenizer& tokenizer, int32_t token) {
  const Result<std::string> bytes = tokenizer.BytesOf(token);
  if (!bytes || ValidUtf8Prefix(*bytes) == bytes->size()) return bytes ? *bytes : std::string();
  std::string text = "bytes:";
  for (const char byte : *bytes) {
    text += fmt::format("\\x{:02x}", static_cast<unsigned char>(byte));
  }
  return text;
}

// As the engine has it of the answer's text: special tokens that are not shown add none.
bool HasText(const text::Tokenizer& tokenizer, const engine::Request& request, int32_t token) {
  return !tokenizer.IsSpecial(token) ||
         std::ranges::find(request.shown_tokens, token) != request.shown_tokens.end();
}

// `before`: the text before the tokens, and then with theirs.
ordered_json CompletionLogprobs(const text::Tokenizer& tokenizer, const engine::Request& request,
                                Tokens tokens, CharacterCount* before) {
  ordered_json logprobs = {{"tokens", ordered_json::array()},
                           {"token_logprobs", ordered_json::array()},
                           {"top_logprobs", ordered_json::array()},
                           {"text_offset", ordered_json::array()}};
  for (const engine::GeneratedToken& token : tokens) {
    const std::string text = Spelling(tokenizer, token.token);
    logprobs["tokens"].push_back(text);
    logprobs["token_logprobs"].push_back(token.logprob);
    // By text: of several tokens with the same the likeliest counts. The one that was drawn is
    // always there.
    ordered_json top = ordered_json::object();
    for (const engine::TokenLogprob& other : token.top) {
      top.emplace(Spelling(tokenizer, other.token), other.logprob);
    }
    top.emplace(text, token.logprob);
    logprobs["top_logprobs"].push_back(std::move(top));
    logprobs["text_offset"].push_back(before->num_whole());
    if (!HasText(tokenizer, request, token.token)) continue;
    if (const Result<std::string> bytes = tokenizer.BytesOf(token.token)) before->Add(*bytes);
  }
  return logprobs;
}

// Null where the request asks for none.
ordered_json Logprobs(const text::Tokenizer& tokenizer, const GenerationBody& request,
                      Tokens tokens, CharacterCount* before) {
  if (!request.request.num_logprobs) return nullptr;
  return request.is_chat ? ChatLogprobs(tokenizer, tokens)
                         : CompletionLogprobs(tokenizer, request.request, tokens, before);
}

// Spellings of single tokens are not always UTF-8.
std::string DumpOfAnswer(const ordered_json& json) {
  return json.dump(-1, ' ', false, ordered_json::error_handler_t::replace);
}

ordered_json FinishJson(const Answer& answer) {
  if (!answer.finish) return nullptr;
  if (*answer.finish == engine::FinishReason::kLength) return "length";
  return answer.calls.empty() ? "stop" : "tool_calls";
}

ordered_json CallJson(const ToolCall& call) {
  return {{"id", call.id},
          {"type", "function"},
          {"function", {{"name", call.name}, {"arguments", call.arguments}}}};
}

// Null beside calls, as at OpenAI.
ordered_json MessageJson(const Answer& answer) {
  ordered_json message = {{"role", "assistant"}, {"content", answer.text}};
  if (answer.text.empty() && !answer.calls.empty()) message["content"] = nullptr;
  message["refusal"] = nullptr;
  if (!answer.reasoning.empty()) message["reasoning_content"] = answer.reasoning;
  if (answer.calls.empty()) return message;
  message["tool_calls"] = ordered_json::array();
  for (const ToolCall& call : answer.calls) message["tool_calls"].push_back(CallJson(call));
  return message;
}

// What a chunk adds to the message.
ordered_json DeltaJson(const AnswerEvent& event, const Answer& answer) {
  switch (event.kind) {
    case AnswerEvent::Kind::kReasoning:
      return {{"reasoning_content", event.text}};
    case AnswerEvent::Kind::kContent:
      return {{"content", event.text}};
    case AnswerEvent::Kind::kCall:
    case AnswerEvent::Kind::kArguments:
      break;
  }
  ordered_json call = {{"index", answer.calls.size() - 1}};
  if (event.kind == AnswerEvent::Kind::kArguments) {
    call["function"] = {{"arguments", event.text}};
  } else {
    ordered_json begun = CallJson(answer.calls.back());
    begun["function"]["arguments"] = "";
    call.update(begun);
  }
  return {{"tool_calls", ordered_json::array({std::move(call)})}};
}

std::string CallId(const AnswerHead& head, int choice_idx, size_t call_idx) {
  constexpr std::string_view kLetters =
      "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz";
  constexpr int kLength = 9;
  const std::string origin = fmt::format("{} {} {}", head.id, choice_idx, call_idx);
  uint64_t hash = DigestOf(std::as_bytes(std::span(origin)));
  std::string id;
  for (int i = 0; i < kLength; ++i) {
    id += kLetters[hash % kLetters.size()];
    hash /= kLetters.size();
  }
  return id;
}

// A prompt counts once, however many answers it has.
ordered_json UsageJson(const GenerationBody& request, std::span<const Answer> answers) {
  size_t num_prompt = 0;
  size_t num_cached = 0;
  size_t num_generated = 0;
  size_t num_reasoning = 0;
  for (size_t i = 0; i < answers.size(); ++i) {
    num_generated += answers[i].tokens.size();
    num_reasoning += answers[i].num_reasoning_tokens;
    if (i % static_cast<size_t>(request.num_answers) != 0) continue;
    num_prompt += answers[i].num_prompt_tokens;
    num_cached += answers[i].num_cached_tokens;
  }
  ordered_json usage = {{"prompt_tokens", num_prompt},
                        {"completion_tokens", num_generated},
                        {"total_tokens", num_prompt + num_generated},
                        {"prompt_tokens_details", {{"cached_tokens", num_cached}}}};
  if (num_reasoning > 0) {
    usage["completion_tokens_details"] = {{"reasoning_tokens", num_reasoning}};
  }
  return usage;
}

ordered_json HeadJson(const AnswerHead& head, const char* object) {
  ordered_json json = {
      {"id", head.id}, {"object", object}, {"created", head.created}, {"model", head.model}};
  if (!head.fingerprint.empty()) json["system_fingerprint"] = head.fingerprint;
  return json;
}

const char* AnswerObject(const GenerationBody& request) {
  return request.is_chat ? "chat.completion" : "text_completion";
}

// A choice as far as it comes before its log probabilities.
ordered_json ChoiceJson(const GenerationBody& request, const Answer& answer, size_t choice_idx) {
  ordered_json choice = {{"index", choice_idx}};
  if (request.is_chat) {
    choice["message"] = MessageJson(answer);
  } else {
    choice["text"] = answer.text;
  }
  return choice;
}

const char* ChunkObject(const GenerationBody& request) {
  return request.is_chat ? "chat.completion.chunk" : "text_completion";
}

// A chunk of one choice. Where a last one comes with the usage, the others say that they have none.
ordered_json Chunk(const GenerationBody& request, const AnswerHead& head, ordered_json choice) {
  ordered_json chunk = HeadJson(head, ChunkObject(request));
  chunk["choices"] = ordered_json::array({std::move(choice)});
  if (request.streams_usage) chunk["usage"] = nullptr;
  return chunk;
}

// A piece that adds nothing to its choice.
ordered_json EmptyChunk(const GenerationBody& request, const AnswerHead& head, int choice_idx,
                        const ordered_json& finish_reason) {
  ordered_json choice = {{"index", choice_idx}};
  if (request.is_chat) {
    choice["delta"] = ordered_json::object();
  } else {
    choice["text"] = "";
  }
  choice["logprobs"] = nullptr;
  choice["finish_reason"] = finish_reason;
  return Chunk(request, head, std::move(choice));
}

}  // namespace

ordered_json AnswerBody(const text::Tokenizer& tokenizer, const GenerationBody& request,
                        std::span<const Answer> answers, const AnswerHead& head) {
  ordered_json body = HeadJson(head, AnswerObject(request));
  body["choices"] = ordered_json::array();
  for (const Answer& answer : answers) {
    ordered_json choice = ChoiceJson(request, answer, body["choices"].size());
    CharacterCount before;
    choice["logprobs"] = Logprobs(tokenizer, request, answer.tokens, &before);
    choice["finish_reason"] = FinishJson(answer);
    body["choices"].push_back(std::move(choice));
  }
  body["usage"] = UsageJson(request, answers);
  return body;
}

void LogprobsText::Add(const text::Tokenizer& tokenizer, const GenerationBody& request,
                       Tokens tokens) {
  if (tokens.empty()) return;
  const ordered_json more = Logprobs(tokenizer, request, tokens, &before_);
  for (const auto& [name, values] : more.items()) {
    if (!values.is_array()) continue;
    const std::string bracketed = DumpOfAnswer(values);
    const std::string_view held = std::string_view(bracketed).substr(1, bracketed.size() - 2);
    const auto found = std::ranges::find(arrays_, name, &decltype(arrays_)::value_type::first);
    if (found == arrays_.end()) {
      arrays_.emplace_back(name, held);
    } else {
      found->second += ',';
      found->second += held;
    }
  }
}

std::string LogprobsText::Text(const text::Tokenizer& tokenizer,
                               const GenerationBody& request) const {
  CharacterCount none;
  if (arrays_.empty()) return DumpOfAnswer(Logprobs(tokenizer, request, {}, &none));
  std::string text = "{";
  for (const auto& [name, held] : arrays_) {
    if (text.size() > 1) text += ',';
    text += fmt::format("\"{}\":[{}]", name, held);
  }
  return text + (request.is_chat ? ",\"refusal\":null}" : "}");
}

std::string AnswerText(const text::Tokenizer& tokenizer, const GenerationBody& request,
                       std::span<const Answer> answers, std::span<const LogprobsText> logprobs,
                       const AnswerHead& head) {
  // An object that goes on.
  const auto begun = [](const ordered_json& object) {
    std::string text = DumpOfAnswer(object);
    text.pop_back();
    return text;
  };
  std::string text = begun(HeadJson(head, AnswerObject(request))) + ",\"choices\":[";
  for (size_t i = 0; i < answers.size(); ++i) {
    if (i > 0) text += ',';
    text += begun(ChoiceJson(request, answers[i], i)) + ",\"logprobs\":";
    text += logprobs[i].Text(tokenizer, request);
    text += ",\"finish_reason\":" + DumpOfAnswer(FinishJson(answers[i])) + "}";
  }
  text += "],\"usage\":" + DumpOfAnswer(UsageJson(request, answers)) + "}";
  return text;
}

void AddEvent(const AnswerEvent& event, const AnswerHead& head, int choice_idx, Answer* answer) {
  switch (event.kind) {
    case AnswerEvent::Kind::kReasoning:
      answer->reasoning += event.text;
      return;
    case AnswerEvent::Kind::kContent:
      answer->text += event.text;
      return;
    case AnswerEvent::Kind::kCall:
      answer->calls.push_back(
          {event.id.empty() ? CallId(head, choice_idx, answer->calls.size()) : event.id, event.text,
           ""});
      return;
    case AnswerEvent::Kind::kArguments:
      answer->calls.back().arguments += event.text;
      return;
  }
}

ordered_json RoleChunk(const GenerationBody& request, const AnswerHead& head, int choice_idx) {
  return Chunk(request, head,
               {{"index", choice_idx},
                {"delta", {{"role", "assistant"}, {"content", ""}}},
                {"logprobs", nullptr},
                {"finish_reason", nullptr}});
}

ordered_json PieceChunk(const text::Tokenizer& tokenizer, const GenerationBody& request,
                        const AnswerHead& head, int choice_idx, const AnswerEvent& event,
                        const Answer& answer, Tokens tokens, CharacterCount* before) {
  ordered_json choice = {{"index", choice_idx}};
  if (request.is_chat) {
    choice["delta"] = DeltaJson(event, answer);
  } else {
    choice["text"] = event.text;
  }
  choice["logprobs"] =
      tokens.empty() ? ordered_json() : Logprobs(tokenizer, request, tokens, before);
  choice["finish_reason"] = nullptr;
  return Chunk(request, head, std::move(choice));
}

ordered_json ProgressChunk(const GenerationBody& request, const AnswerHead& head, int choice_idx,
                           const engine::Update& update, double seconds) {
  ordered_json chunk = EmptyChunk(request, head, choice_idx, nullptr);
  chunk["prompt_progress"] = {{"total", update.progress->num_tokens},
                              {"cache", update.num_reused_tokens},
                              {"processed", update.progress->num_computed},
                              {"time_ms", std::llround(1e3 * seconds)}};
  return chunk;
}

ordered_json FinishChunk(const GenerationBody& request, const AnswerHead& head, int choice_idx,
                         const Answer& answer) {
  return EmptyChunk(request, head, choice_idx, FinishJson(answer));
}

ordered_json UsageChunk(const GenerationBody& request, std::span<const Answer> answers,
                        const AnswerHead& head) {
  ordered_json chunk = HeadJson(head, ChunkObject(request));
  chunk["choices"] = ordered_json::array();
  chunk["usage"] = UsageJson(request, answers);
  return chunk;
}

ordered_json BatchAnswer(int64_t line_number, const std::string& custom_id, ordered_json body) {
  return {{"id", fmt::format("batch_req_{}", line_number)},
          {"custom_id", custom_id},
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
