#include "server/exchange.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>

namespace convene::server {
namespace {

using nlohmann::ordered_json;
using openai::Answer;

double SecondsBetween(Clock::time_point from, Clock::time_point to) {
  return std::chrono::duration<double>(to - from).count();
}

// Spellings of single tokens are not always UTF-8.
std::string Dump(const ordered_json& json) {
  return json.dump(-1, ' ', false, ordered_json::error_handler_t::replace);
}

}  // namespace

Response ErrorResponse(const openai::ApiError& error) {
  Response response{.status = error.status, .body = Dump(openai::ErrorBody(error)) + "\n"};
  if (error.retry_after_s > 0) {
    response.headers.emplace_back("Retry-After", fmt::to_string(error.retry_after_s));
  }
  return response;
}

Exchange::Exchange(std::shared_ptr<Responder> responder, openai::GenerationBody body,
                   openai::AnswerHead head, const std::vector<size_t>& prompt_sizes,
                   Headers headers, Clock::time_point arrival, const text::Tokenizer& tokenizer,
                   Metrics& metrics)
    : responder_(std::move(responder)),
      body_(std::move(body)),
      head_(std::move(head)),
      headers_(std::move(headers)),
      arrival_(arrival),
      tokenizer_(tokenizer),
      metrics_(metrics),
      answers_(prompt_sizes.size()),
      num_bytes_(prompt_sizes.size()),
      times_(prompt_sizes.size()),
      last_sent_(Clock::now()) {
  for (size_t i = 0; i < prompt_sizes.size(); ++i) answers_[i].num_prompt_tokens = prompt_sizes[i];
}

bool Exchange::Take(JobEvent event) {
  if (has_ended_) return false;
  if (event.update.error) {
    openai::ApiError error = openai::ToApiError(*event.update.error);
    // The request was checked before: what is wrong now is nothing that it says.
    if (error.status == 400)
      error = {.status = 500, .message = error.message, .type = "server_error"};
    Fail(error);
    return true;
  }
  const auto idx = static_cast<size_t>(event.choice_idx);
  Answer& answer = answers_[idx];
  if (event.is_first) {
    answer.num_cached_tokens = static_cast<size_t>(event.update.num_reused_tokens);
  }
  TakeTime(event);
  Answer piece{.text = event.update.text, .finish = event.update.finish};
  if (!event.update.is_end_of_text) piece.tokens.push_back(event.update.token);
  answer.text += piece.text;
  answer.finish = piece.finish;
  // Where nobody asks for log probabilities, their number is all that is wanted of tokens.
  for (const engine::GeneratedToken& token : piece.tokens) {
    answer.tokens.push_back(body_.streams ? engine::GeneratedToken{.token = token.token} : token);
  }
  if (body_.streams) Stream(event, std::move(piece));
  if (!answer.finish) return false;
  CountEnd(idx, *answer.finish == engine::FinishReason::kStop ? "stop" : "length");
  if (++num_finished_ < answers_.size()) return false;
  Finish();
  return true;
}

void Exchange::TakeTime(const JobEvent& event) {
  const auto idx = static_cast<size_t>(event.choice_idx);
  Times& times = times_[idx];
  if (!event.is_first) {
    metrics_.TokenGap(SecondsBetween(std::exchange(times.last, event.when), event.when));
    return;
  }
  times = {.submission = event.submission, .first = event.when, .last = event.when};
  const double ttft_s = SecondsBetween(arrival_, event.when);
  metrics_.FirstToken(ttft_s, static_cast<int64_t>(answers_[idx].num_prompt_tokens),
                      static_cast<int64_t>(answers_[idx].num_cached_tokens));
  if (figures_.ttft_s > 0) return;
  figures_.ttft_s = ttft_s;
  figures_.queue_s = SecondsBetween(arrival_, event.submission);
}

void Exchange::CountEnd(size_t idx, std::string_view finish) {
  const Times& times = times_[idx];
  ChoiceFigures figures{.finish = finish,
                        .num_prompt_tokens = static_cast<int64_t>(answers_[idx].num_prompt_tokens),
                        .num_generated_tokens = std::ssize(answers_[idx].tokens),
                        .total_s = SecondsBetween(arrival_, Clock::now())};
  if (times.first != Clock::time_point()) {
    figures.queue_s = SecondsBetween(arrival_, times.submission);
    figures.prefill_s = SecondsBetween(times.submission, times.first);
    figures.decode_s = SecondsBetween(times.first, times.last);
  }
  metrics_.Ended(figures);
}

void Exchange::CountEnds(std::string_view finish) {
  for (size_t i = 0; i < answers_.size(); ++i) {
    if (!answers_[i].finish) CountEnd(i, finish);
  }
}

void Exchange::Abandon() {
  figures_.finish = "abort";
  CountEnds("abort");
}

void Exchange::Stream(const JobEvent& event, Answer piece) {
  const auto idx = static_cast<size_t>(event.choice_idx);
  if (event.is_first && body_.is_chat) SendEvent(openai::RoleChunk(head_, event.choice_idx));
  if (!body_.request.num_logprobs) piece.tokens.clear();
  const bool says_something = !piece.text.empty() || !piece.tokens.empty();
  const auto finish = std::exchange(piece.finish, std::nullopt);
  if (says_something) {
    SendEvent(
        openai::PieceChunk(tokenizer_, body_, head_, event.choice_idx, piece, num_bytes_[idx]));
    for (const engine::GeneratedToken& token : piece.tokens) {
      const Result<std::string> bytes = tokenizer_.BytesOf(token.token);
      if (bytes) num_bytes_[idx] += bytes->size();
    }
  }
  if (!finish) return;
  const Answer last{.finish = finish};
  SendEvent(openai::PieceChunk(tokenizer_, body_, head_, event.choice_idx, last, num_bytes_[idx]));
}

void Exchange::BeginStream() {
  if (std::exchange(has_begun_stream_, true)) return;
  Response head{.content_type = "text/event-stream; charset=utf-8", .headers = headers_};
  head.headers.emplace_back("Cache-Control", "no-cache");
  head.headers.emplace_back("X-Accel-Buffering", "no");  // nginx would collect tokens
  responder_->BeginStream(head);
}

void Exchange::SendEvent(const ordered_json& event) {
  BeginStream();
  last_sent_ = Clock::now();
  responder_->Send(fmt::format("data: {}\n\n", Dump(event)));
}

void Exchange::KeepAlive(Clock::duration silence) {
  if (has_ended_ || !body_.streams || Clock::now() - last_sent_ < silence) return;
  BeginStream();
  last_sent_ = Clock::now();
  responder_->Send(": keep-alive\n\n");
}

void Exchange::Finish() {
  has_ended_ = true;
  const bool has_length = std::ranges::any_of(answers_, [](const Answer& answer) {
    return answer.finish == engine::FinishReason::kLength;
  });
  figures_.finish = has_length ? "length" : "stop";
  if (body_.streams) {
    if (body_.streams_usage) SendEvent(openai::UsageChunk(body_, answers_, head_));
    responder_->Send("data: [DONE]\n\n");
    responder_->EndStream();
    return;
  }
  responder_->Respond({.body = Dump(openai::AnswerBody(tokenizer_, body_, answers_, head_)) + "\n",
                       .headers = headers_});
}

void Exchange::Fail(const openai::ApiError& error) {
  has_ended_ = true;
  figures_.finish = "error";
  CountEnds("error");
  error_ = error;
  if (has_begun_stream_) {
    SendEvent(openai::ErrorBody(error));
    responder_->Send("data: [DONE]\n\n");
    return responder_->EndStream();
  }
  Response response = ErrorResponse(error);
  response.headers.insert(response.headers.end(), headers_.begin(), headers_.end());
  responder_->Respond(response);
}

RequestFigures Exchange::Figures() const {
  RequestFigures figures = figures_;
  for (size_t i = 0; i < answers_.size(); ++i) {
    figures.num_generated_tokens += std::ssize(answers_[i].tokens);
    if (i % static_cast<size_t>(body_.num_answers) != 0) continue;
    figures.num_prompt_tokens += static_cast<int64_t>(answers_[i].num_prompt_tokens);
    figures.num_cached_tokens += static_cast<int64_t>(answers_[i].num_cached_tokens);
  }
  figures.total_s = SecondsBetween(arrival_, Clock::now());
  return figures;
}

}  // namespace convene::server
