#include "server/exchange.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>

namespace convene::server {
namespace {

using nlohmann::ordered_json;
using openai::Answer;
using openai::AnswerEvent;

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
                   openai::AnswerReading reading, openai::AnswerHead head,
                   const std::vector<size_t>& prompt_sizes, Headers headers,
                   Clock::time_point arrival, const text::Tokenizer& tokenizer, Metrics& metrics)
    : responder_(std::move(responder)),
      body_(std::move(body)),
      head_(std::move(head)),
      headers_(std::move(headers)),
      arrival_(arrival),
      tokenizer_(tokenizer),
      metrics_(metrics),
      answers_(prompt_sizes.size()),
      before_(prompt_sizes.size()),
      logprobs_(prompt_sizes.size()),
      times_(prompt_sizes.size()),
      last_sent_(Clock::now()) {
  for (size_t i = 0; i < prompt_sizes.size(); ++i) answers_[i].num_prompt_tokens = prompt_sizes[i];
  if (body_.is_chat) parsers_.assign(answers_.size(), openai::AnswerParser(std::move(reading)));
  if (!body_.is_response) return;
  response_.emplace(head_, std::exchange(body_.repeated, {}),
                    [this](const std::string& type, const ordered_json& event) {
                      if (body_.streams) SendEvent(event, type);
                    });
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
  if (event.update.progress) {
    SendEvent(openai::ProgressChunk(body_, head_, event.choice_idx, event.update,
                                    SecondsBetween(event.update.start, event.when)));
    return false;
  }
  if (event.is_first) {
    answer.num_cached_tokens = static_cast<size_t>(event.update.num_reused_tokens);
  }
  TakeTime(event);
  std::vector<engine::GeneratedToken> tokens;
  if (!event.update.is_end_of_text) tokens.push_back(event.update.token);
  // What is thought is known by the text before the token or by that with it.
  const bool was_reasoning = !parsers_.empty() && parsers_[idx].is_reasoning();
  const std::vector<AnswerEvent> events = Parse(idx, event.update);
  if (was_reasoning || (!parsers_.empty() && parsers_[idx].is_reasoning())) {
    answer.num_reasoning_tokens += tokens.size();
  }
  answer.finish = event.update.finish;
  // Their number is all that is wanted of tokens later.
  for (const engine::GeneratedToken& token : tokens) {
    answer.tokens.push_back({.token = token.token});
  }
  if (body_.request.num_logprobs && !body_.streams) logprobs_[idx].Add(tokenizer_, body_, tokens);
  if (event.is_first && response_) {
    response_->Begin();
  } else if (body_.streams && event.is_first && body_.is_chat) {
    SendEvent(openai::RoleChunk(body_, head_, event.choice_idx));
  }
  if (!body_.request.num_logprobs) tokens.clear();
  Stream(idx, events, tokens);
  if (!answer.finish) return false;
  CountEnd(idx, *answer.finish == engine::FinishReason::kStop ? "stop" : "length");
  if (++num_finished_ < answers_.size()) return false;
  Finish();
  return true;
}

void Exchange::TakeTime(const JobEvent& event) {
  const auto idx = static_cast<size_t>(event.choice_idx);
  Times& times = times_[idx];
  metrics_.TokenOfAnswer();
  ++times.num_tokens;
  if (!event.is_first) {
    metrics_.TokenGap(SecondsBetween(std::exchange(times.last, event.when), event.when));
    return;
  }
  times.start = event.update.start;
  times.first = event.when;
  times.last = event.when;
  const double ttft_s = SecondsBetween(arrival_, event.when);
  metrics_.FirstToken(ttft_s, static_cast<int64_t>(answers_[idx].num_prompt_tokens),
                      static_cast<int64_t>(answers_[idx].num_cached_tokens));
  if (figures_.ttft_s > 0) return;
  figures_.ttft_s = ttft_s;
  figures_.queue_s = SecondsBetween(arrival_, event.update.start);
}

void Exchange::CountEnd(size_t idx, std::string_view finish) {
  const Times& times = times_[idx];
  ChoiceFigures figures{.finish = finish,
                        .num_prompt_tokens = static_cast<int64_t>(answers_[idx].num_prompt_tokens),
                        .num_generated_tokens = times.num_tokens,
                        .total_s = SecondsBetween(arrival_, Clock::now())};
  if (times.first != Clock::time_point()) {
    figures.queue_s = SecondsBetween(arrival_, times.start);
    figures.prefill_s = SecondsBetween(times.start, times.first);
    figures.decode_s = SecondsBetween(times.first, times.last);
  }
  metrics_.Ended(figures);
}

void Exchange::CountEnds(std::string_view finish) {
  for (size_t i = 0; i < answers_.size(); ++i) {
    if (!answers_[i].finish) CountEnd(i, finish);
  }
  CountPrompts();
}

void Exchange::CountPrompts() {
  if (std::exchange(has_counted_prompts_, true)) return;
  const auto num_choices = static_cast<size_t>(body_.num_answers);
  for (size_t first = 0; first < times_.size(); first += num_choices) {
    const auto choices = std::span(times_).subspan(first, num_choices);
    metrics_.PromptEnded(
        {.num_choices = body_.num_answers,
         .most_generated_tokens = std::ranges::max(choices, {}, &Times::num_tokens).num_tokens,
         .max_tokens = body_.request.max_tokens});
  }
}

void Exchange::Abandon() {
  figures_.finish = "abort";
  if (!has_ended_) CountEnds("abort");
}

std::vector<AnswerEvent> Exchange::Parse(size_t idx, const engine::Update& update) {
  if (parsers_.empty()) {
    if (update.text.empty()) return {};
    return {{AnswerEvent::Kind::kContent, update.text}};
  }
  std::vector<AnswerEvent> events = parsers_[idx].Push(update.text);
  if (update.finish) {
    for (AnswerEvent& event : parsers_[idx].Finish()) events.push_back(std::move(event));
  }
  return events;
}

// Adds the events to the answer, and sends them where it is streamed; the log probabilities go with
// the first of them.
void Exchange::Stream(size_t idx, std::span<const AnswerEvent> events,
                      std::span<const engine::GeneratedToken> tokens) {
  const int choice_idx = static_cast<int>(idx);
  Answer& answer = answers_[idx];
  const auto send = [&](const AnswerEvent& event) {
    if (!body_.streams) return;
    SendEvent(openai::PieceChunk(tokenizer_, body_, head_, choice_idx, event, answer, tokens,
                                 &before_[idx]));
    tokens = {};
  };
  for (const AnswerEvent& event : events) {
    openai::AddEvent(event, head_, choice_idx, &answer);
    if (response_) {
      response_->Take(event, answer);
    } else {
      send(event);
    }
  }
  if (response_) {
    if (answer.finish) response_->Finish(answer);
    return;
  }
  if (!tokens.empty()) send({});
  if (body_.streams && answer.finish) {
    SendEvent(openai::FinishChunk(body_, head_, choice_idx, answer));
  }
}

void Exchange::BeginStream() {
  if (std::exchange(has_begun_stream_, true)) return;
  Response head{.content_type = "text/event-stream; charset=utf-8", .headers = headers_};
  head.headers.emplace_back("Cache-Control", "no-cache");
  head.headers.emplace_back("X-Accel-Buffering", "no");  // nginx would collect tokens
  responder_->BeginStream(head);
}

void Exchange::SendEvent(const ordered_json& event, const std::string& type) {
  BeginStream();
  last_sent_ = Clock::now();
  if (!type.empty()) responder_->Send(fmt::format("event: {}\n", type));
  responder_->Send(fmt::format("data: {}\n\n", Dump(event)));
}

void Exchange::KeepAlive(Clock::duration before_begin, Clock::duration after_begin) {
  const Clock::duration silence = has_begun_stream_ ? after_begin : before_begin;
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
  CountPrompts();
  if (response_) {
    if (body_.streams) return responder_->EndStream();
    return responder_->Respond({.body = Dump(response_->Response()) + "\n", .headers = headers_});
  }
  if (body_.streams) {
    if (body_.streams_usage) SendEvent(openai::UsageChunk(body_, answers_, head_));
    responder_->Send("data: [DONE]\n\n");
    responder_->EndStream();
    return;
  }
  responder_->Respond(
      {.body = openai::AnswerText(tokenizer_, body_, answers_, logprobs_, head_) + "\n",
       .headers = headers_});
}

void Exchange::Fail(const openai::ApiError& error) {
  has_ended_ = true;
  figures_.finish = "error";
  CountEnds("error");
  error_ = error;
  if (has_begun_stream_ && response_) {
    response_->Fail(error);
    return responder_->EndStream();
  }
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
