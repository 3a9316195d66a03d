// What the server counts and measures, as Prometheus reads it. Names that begin with "vllm:" mean
// what they mean there (https://docs.vllm.ai/en/latest/design/metrics.html), so that dashboards
// made for vLLM work; those that begin with "convene:" are convene's own.
#pragma once

#include <cstdint>
#include <map>
#include <mutex>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace convene::server {

// Counts of values up to each bound, with their sum.
class Histogram {
 public:
  // `bounds` ascend; the last bucket, +Inf, is not among them.
  explicit Histogram(std::span<const double> bounds)
      : bounds_(bounds), counts_(bounds.size() + 1) {}

  void Observe(double value, int64_t times = 1);
  // The lines of a histogram with the label model_name.
  void AppendTo(std::string& text, std::string_view name, std::string_view help,
                std::string_view labels) const;

 private:
  std::span<const double> bounds_;  // static
  std::vector<int64_t> counts_;     // per bucket, the last one beyond all bounds
  double sum_ = 0;
};

// Of the engine after a step, or while it is idle.
struct EngineState {
  int num_running = 0;
  int num_waiting = 0;  // preempted, or not admitted yet
  int num_kv_blocks = 0;
  int num_held_kv_blocks = 0;
  int64_t num_preemptions = 0;
  double step_s = 0;  // 0: no step ran
  int64_t step_tokens = 0;
  // Tokens that chose each expert so far, per layer; null: no step ran.
  const std::vector<std::vector<int64_t>>* expert_counts = nullptr;
};

// Of a request that has ended.
struct RequestFigures {
  std::string finish;  // "stop", "length", "abort" or "error"
  int64_t num_prompt_tokens = 0;
  int64_t num_cached_tokens = 0;
  int64_t num_generated_tokens = 0;
  double queue_s = 0;  // from its arrival until the engine took it
  double ttft_s = 0;   // from its arrival to its first token; 0: there is none
  double total_s = 0;
};

// Threads may call it at the same time.
class Metrics {
 public:
  Metrics();

  void AfterStep(const EngineState& state);
  // The first token of a choice, and later ones: seconds since the one before.
  void TokenGap(double seconds);
  void Ended(const RequestFigures& figures);
  void Responded(int status);
  void SetConnections(int count);

  // `num_queued`: choices that the engine has not taken yet.
  std::string Text(std::string_view model_name, int num_queued) const;

 private:
  mutable std::mutex mutex_;
  EngineState state_;
  double expert_balance_ = 0;
  int64_t num_steps_ = 0;
  int64_t num_prompt_tokens_ = 0;
  int64_t num_cached_tokens_ = 0;
  int64_t num_generated_tokens_ = 0;
  int num_connections_ = 0;
  std::map<std::string, int64_t> ended_;  // by finish
  std::map<int, int64_t> responses_;      // by status
  Histogram step_s_;
  Histogram step_tokens_;
  Histogram ttft_s_;
  Histogram gap_s_;
  Histogram queue_s_;
  Histogram total_s_;
  Histogram prompt_tokens_;
  Histogram generated_tokens_;
};

}  // namespace convene::server
