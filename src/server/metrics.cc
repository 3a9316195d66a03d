#include "server/metrics.h"

#include <fmt/format.h>

#include <iterator>

namespace convene::server {
namespace {

// As vLLM has them, so that quantiles can be compared.
constexpr double kFirstTokenBounds[] = {0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1,
                                        0.25,  0.5,   0.75, 1,    2.5,  5,    7.5,  10,
                                        20,    40,    80,   160,  640,  2560};
constexpr double kGapBounds[] = {0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5,
                                 0.75, 1,     2.5,  5,     7.5, 10,   20,  40,  80};
constexpr double kRequestBounds[] = {0.3, 0.5, 0.8, 1,  1.5, 2,   2.5, 5,   10,   15,  20,
                                     30,  40,  50,  60, 120, 240, 480, 960, 1920, 7680};
constexpr double kTokenBounds[] = {1,    2,    5,    10,    20,    50,    100,    200,   500,
                                   1000, 2000, 5000, 10000, 20000, 50000, 100000, 200000};
constexpr double kChoiceBounds[] = {1, 2, 5, 10, 20};
constexpr double kStepBounds[] = {0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1,
                                  0.2,   0.5,   1,     2,    5,    10};

}  // namespace

Metrics::Metrics()
    : step_s_(kStepBounds),
      step_tokens_(kTokenBounds),
      ttft_s_(kFirstTokenBounds),
      gap_s_(kGapBounds),
      per_token_s_(kGapBounds),
      queue_s_(kRequestBounds),
      prefill_s_(kRequestBounds),
      decode_s_(kRequestBounds),
      inference_s_(kRequestBounds),
      total_s_(kRequestBounds),
      prompt_tokens_(kTokenBounds),
      generated_tokens_(kTokenBounds),
      most_generated_tokens_(kTokenBounds),
      num_choices_(kChoiceBounds),
      max_tokens_(kTokenBounds) {
  for (const char* finish : {"stop", "length", "abort", "error"}) ended_[finish] = 0;
}

void Metrics::AfterStep(const EngineState& state) {
  const std::scoped_lock lock(mutex_);
  state_ = state;
  if (state.step_s <= 0) return;
  step_s_.Observe(state.step_s);
  step_tokens_.Observe(static_cast<double>(state.step_tokens));
}

void Metrics::FirstToken(double seconds, int64_t num_prompt_tokens, int64_t num_cached_tokens) {
  const std::scoped_lock lock(mutex_);
  ttft_s_.Observe(seconds);
  num_prompt_tokens_ += num_prompt_tokens;
  num_cached_tokens_ += num_cached_tokens;
}

void Metrics::TokenGap(double seconds) {
  const std::scoped_lock lock(mutex_);
  gap_s_.Observe(seconds);
}

void Metrics::TokenOfAnswer() {
  const std::scoped_lock lock(mutex_);
  ++num_generated_tokens_;
}

void Metrics::Ended(const ChoiceFigures& figures) {
  const std::scoped_lock lock(mutex_);
  ++ended_.try_emplace(std::string(figures.finish)).first->second;
  total_s_.Observe(figures.total_s);
  prompt_tokens_.Observe(static_cast<double>(figures.num_prompt_tokens));
  generated_tokens_.Observe(static_cast<double>(figures.num_generated_tokens));
  if (figures.num_generated_tokens == 0) return;
  queue_s_.Observe(figures.queue_s);
  prefill_s_.Observe(figures.prefill_s);
  decode_s_.Observe(figures.decode_s);
  inference_s_.Observe(figures.prefill_s + figures.decode_s);
  if (figures.num_generated_tokens == 1) return;
  per_token_s_.Observe(figures.decode_s / static_cast<double>(figures.num_generated_tokens - 1));
}

void Metrics::PromptEnded(const PromptFigures& figures) {
  const std::scoped_lock lock(mutex_);
  most_generated_tokens_.Observe(static_cast<double>(figures.most_generated_tokens));
  num_choices_.Observe(figures.num_choices);
  if (figures.max_tokens) max_tokens_.Observe(*figures.max_tokens);
}

void Metrics::GoneUnread(double total_s) {
  const std::scoped_lock lock(mutex_);
  ++ended_["abort"];
  total_s_.Observe(total_s);
}

void Metrics::Responded(int status) {
  const std::scoped_lock lock(mutex_);
  ++responses_[status];
}

void Metrics::SetConnections(int count) {
  const std::scoped_lock lock(mutex_);
  num_connections_ = count;
}

std::string Metrics::Text(std::string_view model_name, int num_queued) const {
  const std::string labels = ModelLabel(model_name);
  const std::scoped_lock lock(mutex_);
  std::string text;
  const auto number = [&](std::string_view name, std::string_view help, std::string_view type,
                          auto value) { AppendNumber(text, name, help, type, labels, value); };
  number("vllm:num_requests_running", "Choices that take part in steps.", "gauge",
         state_.num_running);
  number("vllm:num_requests_waiting", "Choices that wait for their first step, or were preempted.",
         "gauge", state_.num_waiting + num_queued);
  number("vllm:kv_cache_usage_perc", "Share of the KV cache's blocks that requests hold; 1 is all.",
         "gauge",
         state_.num_kv_blocks == 0 ? 0.0
                                   : static_cast<double>(state_.num_held_kv_blocks) /
                                         static_cast<double>(state_.num_kv_blocks));
  number("vllm:num_preemptions_total", "Times that a choice gave up its blocks to older ones.",
         "counter", state_.num_preemptions);
  number("vllm:prompt_tokens_total", "Tokens of prompts.", "counter", num_prompt_tokens_);
  number("vllm:generation_tokens_total", "Tokens of answers, with those that end them.", "counter",
         num_generated_tokens_);
  number("vllm:prefix_cache_queries_total", "Tokens of prompts that were looked for in the cache.",
         "counter", num_prompt_tokens_);
  number("vllm:prefix_cache_hits_total", "Tokens of prompts that were found in the cache.",
         "counter", num_cached_tokens_);
  AppendHead(text, "vllm:request_success_total", "Choices that have ended, by the way they did.",
             "counter");
  for (const auto& [finish, count] : ended_) {
    AppendValue(text, "vllm:request_success_total",
                fmt::format("{},finished_reason=\"{}\"", labels, finish), count);
  }
  ttft_s_.AppendTo(text, "vllm:time_to_first_token_seconds", "From arrival to the first token.",
                   labels);
  gap_s_.AppendTo(text, "vllm:inter_token_latency_seconds", "Between tokens of a choice.", labels);
  per_token_s_.AppendTo(text, "vllm:request_time_per_output_token_seconds",
                        "Mean time between the tokens of an answer.", labels);
  queue_s_.AppendTo(text, "vllm:request_queue_time_seconds", "From arrival to the first step.",
                    labels);
  prefill_s_.AppendTo(text, "vllm:request_prefill_time_seconds",
                      "From its first step to the first token.", labels);
  decode_s_.AppendTo(text, "vllm:request_decode_time_seconds", "From the first token to the last.",
                     labels);
  inference_s_.AppendTo(text, "vllm:request_inference_time_seconds", "Both of these together.",
                        labels);
  total_s_.AppendTo(text, "vllm:e2e_request_latency_seconds", "From arrival to the end.", labels);
  prompt_tokens_.AppendTo(text, "vllm:request_prompt_tokens", "Tokens of a prompt.", labels);
  generated_tokens_.AppendTo(text, "vllm:request_generation_tokens",
                             "Tokens of an answer, with its end.", labels);
  most_generated_tokens_.AppendTo(text, "vllm:request_max_num_generation_tokens",
                                  "Tokens of the longest answer to a prompt.", labels);
  num_choices_.AppendTo(text, "vllm:request_params_n", "Choices wanted of a prompt: n.", labels);
  max_tokens_.AppendTo(text, "vllm:request_params_max_tokens",
                       "The most tokens wanted of a choice.", labels);
  step_tokens_.AppendTo(text, "vllm:iteration_tokens_total", "Tokens of a step.", labels);
  step_s_.AppendTo(text, "convene:step_seconds", "Time of a step.", labels);
  if (state_.pages) {
    number("convene:expert_pages_used_total", "Experts on a disk that steps computed with.",
           "counter", state_.pages->num_used);
    number("convene:expert_pages_read_total",
           "Experts that were read from the disk, ahead or when they were needed.", "counter",
           state_.pages->num_read);
    number("convene:expert_read_bytes_total", "Bytes of experts that were read from the disk.",
           "counter", state_.pages->read_bytes);
  }
  number("convene:connections", "Open connections.", "gauge", num_connections_);
  AppendHead(text, "convene:http_responses_total", "Responses by status.", "counter");
  for (const auto& [status, count] : responses_) {
    AppendValue(text, "convene:http_responses_total",
                fmt::format("{},status=\"{}\"", labels, status), count);
  }
  return text;
}

}  // namespace convene::server
