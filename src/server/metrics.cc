#include "server/metrics.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <numeric>

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
constexpr double kStepBounds[] = {0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1,
                                  0.2,   0.5,   1,     2,    5,    10};

// In a label's value.
std::string Escaped(std::string_view text) {
  std::string escaped;
  for (const char c : text) {
    if (c == '\\' || c == '"') escaped += '\\';
    if (c == '\n') {
      escaped += "\\n";
    } else {
      escaped += c;
    }
  }
  return escaped;
}

// Over all layers: how many tokens the busiest expert had, as a multiple of the mean.
double Balance(const std::vector<std::vector<int64_t>>& counts) {
  double sum = 0;
  int num_layers = 0;
  for (const std::vector<int64_t>& layer : counts) {
    const int64_t total = std::accumulate(layer.begin(), layer.end(), int64_t{0});
    if (total == 0) continue;
    const double mean = static_cast<double>(total) / static_cast<double>(layer.size());
    sum += static_cast<double>(std::ranges::max(layer)) / mean;
    ++num_layers;
  }
  return num_layers == 0 ? 0 : sum / num_layers;
}

void AppendHead(std::string& text, std::string_view name, std::string_view help,
                std::string_view type) {
  fmt::format_to(std::back_inserter(text), "# HELP {0} {1}\n# TYPE {0} {2}\n", name, help, type);
}

template <typename Number>
void AppendNumber(std::string& text, std::string_view name, std::string_view help,
                  std::string_view type, std::string_view labels, Number value) {
  AppendHead(text, name, help, type);
  fmt::format_to(std::back_inserter(text), "{}{{{}}} {}\n", name, labels, value);
}

}  // namespace

void Histogram::Observe(double value, int64_t times) {
  const auto bucket = std::ranges::lower_bound(bounds_, value) - bounds_.begin();
  counts_[static_cast<size_t>(bucket)] += times;
  sum_ += value * static_cast<double>(times);
}

void Histogram::AppendTo(std::string& text, std::string_view name, std::string_view help,
                         std::string_view labels) const {
  AppendHead(text, name, help, "histogram");
  const auto out = std::back_inserter(text);
  int64_t so_far = 0;
  for (size_t i = 0; i < counts_.size(); ++i) {
    so_far += counts_[i];
    const std::string bound = i < bounds_.size() ? fmt::to_string(bounds_[i]) : "+Inf";
    fmt::format_to(out, "{}_bucket{{{},le=\"{}\"}} {}\n", name, labels, bound, so_far);
  }
  fmt::format_to(out, "{0}_sum{{{1}}} {2}\n{0}_count{{{1}}} {3}\n", name, labels, sum_, so_far);
}

Metrics::Metrics()
    : step_s_(kStepBounds),
      step_tokens_(kTokenBounds),
      ttft_s_(kFirstTokenBounds),
      gap_s_(kGapBounds),
      queue_s_(kRequestBounds),
      total_s_(kRequestBounds),
      prompt_tokens_(kTokenBounds),
      generated_tokens_(kTokenBounds) {}

void Metrics::AfterStep(const EngineState& state) {
  constexpr int64_t kStepsBetweenBalances = 64;  // adding up all counts takes longer than the rest
  const std::scoped_lock lock(mutex_);
  state_ = state;
  state_.expert_counts = nullptr;  // valid during the call alone
  if (state.step_s <= 0) return;
  step_s_.Observe(state.step_s);
  step_tokens_.Observe(static_cast<double>(state.step_tokens));
  if (num_steps_++ % kStepsBetweenBalances == 0 && state.expert_counts != nullptr) {
    expert_balance_ = Balance(*state.expert_counts);
  }
}

void Metrics::TokenGap(double seconds) {
  const std::scoped_lock lock(mutex_);
  gap_s_.Observe(seconds);
}

void Metrics::Ended(const RequestFigures& figures) {
  const std::scoped_lock lock(mutex_);
  ++ended_[figures.finish];
  num_prompt_tokens_ += figures.num_prompt_tokens;
  num_cached_tokens_ += figures.num_cached_tokens;
  num_generated_tokens_ += figures.num_generated_tokens;
  queue_s_.Observe(figures.queue_s);
  total_s_.Observe(figures.total_s);
  if (figures.ttft_s > 0) ttft_s_.Observe(figures.ttft_s);
  prompt_tokens_.Observe(static_cast<double>(figures.num_prompt_tokens));
  generated_tokens_.Observe(static_cast<double>(figures.num_generated_tokens));
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
  const std::string labels = fmt::format("model_name=\"{}\"", Escaped(model_name));
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
  number("vllm:num_preemptions_total", "Requests that gave up their blocks to older ones.",
         "counter", state_.num_preemptions);
  number("vllm:prompt_tokens_total", "Tokens of prompts.", "counter", num_prompt_tokens_);
  number("vllm:generation_tokens_total", "Tokens of answers.", "counter", num_generated_tokens_);
  number("vllm:prefix_cache_queries_total", "Tokens of prompts that were looked for in the cache.",
         "counter", num_prompt_tokens_);
  number("vllm:prefix_cache_hits_total", "Tokens of prompts that were found in the cache.",
         "counter", num_cached_tokens_);
  AppendHead(text, "vllm:request_success_total", "Requests that have ended, by the way they did.",
             "counter");
  for (const auto& [finish, count] : ended_) {
    text += fmt::format("vllm:request_success_total{{{},finished_reason=\"{}\"}} {}\n", labels,
                        finish, count);
  }
  ttft_s_.AppendTo(text, "vllm:time_to_first_token_seconds", "From arrival to the first token.",
                   labels);
  gap_s_.AppendTo(text, "vllm:inter_token_latency_seconds", "Between tokens of a choice.", labels);
  queue_s_.AppendTo(text, "vllm:request_queue_time_seconds",
                    "From arrival until the engine took it.", labels);
  total_s_.AppendTo(text, "vllm:e2e_request_latency_seconds", "From arrival to the end.", labels);
  prompt_tokens_.AppendTo(text, "vllm:request_prompt_tokens", "Tokens of a prompt.", labels);
  generated_tokens_.AppendTo(text, "vllm:request_generation_tokens", "Tokens of an answer.",
                             labels);
  step_tokens_.AppendTo(text, "vllm:iteration_tokens_total", "Tokens of a step.", labels);
  step_s_.AppendTo(text, "convene:step_seconds", "Time of a step.", labels);
  number("convene:expert_balance_ratio",
         "Tokens of a layer's busiest expert over the mean of its experts, mean of all layers.",
         "gauge", expert_balance_);
  number("convene:connections", "Open connections.", "gauge", num_connections_);
  AppendHead(text, "convene:http_responses_total", "Responses by status.", "counter");
  for (const auto& [status, count] : responses_) {
    text +=
        fmt::format("convene:http_responses_total{{{},status=\"{}\"}} {}\n", labels, status, count);
  }
  return text;
}

}  // namespace convene::server
