// What has been generated for a request, as JSON in the forms of OpenAI's API: the body of an
// answer, its chunks where it is streamed, and the lines of a batch's results. Requests are read in
// generation_body.h.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "engine/request.h"
#include "openai/answer_parser.h"
#include "openai/character_count.h"
#include "openai/generation_body.h"
#include "text/tokenizer.h"

namespace convene::openai {

struct ToolCall {
  std::string id;
  std::string name;
  std::string arguments;  // JSON text, as the model wrote it
};

// One choice of an answer.
struct Answer {
  size_t num_prompt_tokens = 0;
  size_t num_cached_tokens = 0;  // of the prompt: found in the KV cache
  std::string text;
  std::vector<engine::GeneratedToken> tokens;  // without an end-of-text token
  std::optional<engine::FinishReason> finish;
  // Of a chat, where the model tells them apart from its text.
  std::string reasoning = {};
  size_t num_reasoning_tokens = 0;
  std::vector<ToolCall> calls = {};
};

// What all objects that belong to an answer begin with.
struct AnswerHead {
  std::string id;       // such as "chatcmpl-17"
  int64_t created = 0;  // seconds since 1970
  std::string model;
  std::string fingerprint = {};  // of model, formats and plan; empty: left out
};

// A chat.completion or text_completion, with log probabilities where `request` asks for them.
// `answers`: to each prompt request.num_answers, those to the first prompt first.
nlohmann::ordered_json AnswerBody(const text::Tokenizer& tokenizer, const GenerationBody& request,
                                  std::span<const Answer> answers, const AnswerHead& head);

// The log probabilities of a choice as text, written as its tokens come. As JSON values they take
// many times as much memory, and to write those of a long answer at its end takes seconds.
class LogprobsText {
 public:
  void Add(const text::Tokenizer& tokenizer, const GenerationBody& request,
           std::span<const engine::GeneratedToken> tokens);
  // Of all tokens so far; "null" where the request asks for none.
  std::string Text(const text::Tokenizer& tokenizer, const GenerationBody& request) const;

 private:
  std::vector<std::pair<std::string, std::string>> arrays_;  // by name, what their brackets hold
  CharacterCount before_;
};

// AnswerBody as text. `logprobs`: of each answer, whose tokens need none.
std::string AnswerText(const text::Tokenizer& tokenizer, const GenerationBody& request,
                       std::span<const Answer> answers, std::span<const LogprobsText> logprobs,
                       const AnswerHead& head);

// What an answer was parsed to, as a part of it. A call to which the model's form gives no id gets
// one that is its own: a hash of the answer's id, of the choice and of its place in it, in the nine
// letters and digits that Mistral's templates want.
void AddEvent(const AnswerEvent& event, const AnswerHead& head, int choice_idx, Answer* answer);

// The chunks of a streamed answer: of a chat the first of a choice says whose it is; then come
// pieces, one that says why the choice has ended, and one with the usage after all choices where it
// was asked for.
nlohmann::ordered_json RoleChunk(const GenerationBody& request, const AnswerHead& head,
                                 int choice_idx);
// `tokens`: that the piece is of, with log probabilities; none: they are not wanted, or are those
// of another piece. `before`: the text of a completion's tokens before these, and then with them.
// `answer`: with the event.
nlohmann::ordered_json PieceChunk(const text::Tokenizer& tokenizer, const GenerationBody& request,
                                  const AnswerHead& head, int choice_idx, const AnswerEvent& event,
                                  const Answer& answer,
                                  std::span<const engine::GeneratedToken> tokens,
                                  CharacterCount* before);
// Before them, of a prompt that is being computed: an empty piece with `prompt_progress`, as
// llama.cpp's server has it. Precondition: update.progress. `seconds`: since the engine took it.
nlohmann::ordered_json ProgressChunk(const GenerationBody& request, const AnswerHead& head,
                                     int choice_idx, const engine::Update& update, double seconds);
nlohmann::ordered_json FinishChunk(const GenerationBody& request, const AnswerHead& head,
                                   int choice_idx, const Answer& answer);
nlohmann::ordered_json UsageChunk(const GenerationBody& request, std::span<const Answer> answers,
                                  const AnswerHead& head);

// The result of the line with that number (from 1): its answer, or why it has none. `code` is
// "invalid_request" or "server_error".
nlohmann::ordered_json BatchAnswer(int64_t line_number, const std::string& custom_id,
                                   nlohmann::ordered_json body);
nlohmann::ordered_json BatchError(int64_t line_number, const std::optional<std::string>& custom_id,
                                  const char* code, const std::string& message);

}  // namespace convene::openai
