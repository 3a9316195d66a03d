// One request for text while it is answered: what the engine did for it becomes a JSON response or
// a stream of server-sent events. It knows no sockets (http.h) and no engine (job.h).
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "openai/answer.h"
#include "openai/answer_parser.h"
#include "openai/api_error.h"
#include "openai/response_stream.h"
#include "server/http.h"
#include "server/job.h"
#include "server/metrics.h"
#include "text/tokenizer.h"

namespace convene::server {

// Of a request with all its choices that has ended, for the log.
struct RequestFigures {
  std::string finish;  // "stop", "length", "abort" or "error"
  int64_t num_prompt_tokens = 0;
  int64_t num_cached_tokens = 0;
  int64_t num_generated_tokens = 0;
  double queue_s = 0;  // from its arrival to its first step
  double ttft_s = 0;   // from its arrival to its first token; 0: there is none
  double total_s = 0;
};

// The JSON of an error with its status and, where it says so, when to try again.
Response ErrorResponse(const openai::ApiError& error);

class Exchange {
 public:
  // `tokenizer` and `metrics` must outlive it. `prompt_sizes`: of each choice, in tokens.
  // `headers`: of the response. Without messages and prompts in `body`, which are not needed.
  Exchange(std::shared_ptr<Responder> responder, openai::GenerationBody body,
           openai::AnswerReading reading, openai::AnswerHead head,
           const std::vector<size_t>& prompt_sizes, Headers headers, Clock::time_point arrival,
           const text::Tokenizer& tokenizer, Metrics& metrics);
  Exchange(const Exchange&) = delete;  // its parts refer to it
  Exchange& operator=(const Exchange&) = delete;

  // Whether the exchange has ended with this: all choices, or one by an error. Later ones are
  // ignored.
  bool Take(JobEvent event);

  // A comment to a client that streams and was sent nothing for so long: before its stream has
  // begun, so that it sees that it was heard, and after that, so that nobody on the way closes it.
  void KeepAlive(Clock::duration before_begin, Clock::duration after_begin);

  // Ends it with an error that the engine does not know of.
  void Fail(const openai::ApiError& error);

  // The client has gone.
  void Abandon();

  // When it has ended.
  RequestFigures Figures() const;
  // What the request was refused or ended with.
  const std::optional<openai::ApiError>& error() const { return error_; }
  const std::string& id() const { return head_.id; }
  bool streams() const { return body_.streams; }

 private:
  // When the tokens of a choice came.
  struct Times {
    Clock::time_point start;  // of its first step
    Clock::time_point first;
    Clock::time_point last;
    int64_t num_tokens = 0;  // with the one that ends it
  };

  void TakeTime(const JobEvent& event);
  // Of the choice, or of all that have not ended.
  void CountEnd(size_t idx, std::string_view finish);
  void CountEnds(std::string_view finish);
  // At the end, and once also where what is sent then finds that the client has gone.
  void CountPrompts();
  std::vector<openai::AnswerEvent> Parse(size_t idx, const engine::Update& update);
  void Stream(size_t idx, std::span<const openai::AnswerEvent> events,
              std::span<const engine::GeneratedToken> tokens);
  void SendEvent(const nlohmann::ordered_json& event, const std::string& type = "");
  void BeginStream();
  void Finish();

  std::shared_ptr<Responder> responder_;
  openai::GenerationBody body_;
  openai::AnswerHead head_;
  Headers headers_;
  Clock::time_point arrival_;
  const text::Tokenizer& tokenizer_;
  Metrics& metrics_;

  std::optional<openai::ResponseStream> response_;  // of /v1/responses
  std::vector<openai::AnswerParser> parsers_;       // of each choice of a chat
  std::vector<openai::Answer> answers_;
  std::vector<openai::CharacterCount> before_;  // of each completion's tokens that were streamed
  std::vector<openai::LogprobsText> logprobs_;  // of each choice that is not streamed
  std::vector<Times> times_;                    // of each choice
  size_t num_finished_ = 0;
  bool has_ended_ = false;
  bool has_counted_prompts_ = false;
  bool has_begun_stream_ = false;
  Clock::time_point last_sent_;
  std::optional<openai::ApiError> error_;
  RequestFigures figures_;
};

}  // namespace convene::server
