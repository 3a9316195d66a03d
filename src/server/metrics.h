// What the server counts and measures, as Prometheus reads it. Names that begin with "vllm:" mean
// what they mean there (https://docs.vllm.ai/en/latest/design/metrics.html), so that dashboards
// made for vLLM work; those that begin with "convene:" are convene's own.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>

#include "server/prometheus.h"

namespace convene::server {

// Of the engine after a step, or while it is idle.
struct EngineState {
  int num_running = 0;
  int num_waiting = 0;  // preempted, or not admitted yet
  int num_kv_blocks = 0;
  int num_held_kv_blocks = 0;
  int64_t num_preemptions = 0;
  // Of experts on a disk (weights::PageStatistics), since the beginning: those that were computed
  // with, those that were read, and their bytes. Unset: all are in memory.
  struct Pages {
    int64_t num_used = 0;
    int64_t num_read = 0;
    uint64_t read_bytes = 0;
  };
  std::optional<Pages> pages = {};
  double step_s = 0;  // 0: no step ran
  int64_t step_tokens = 0;
};

// Of a choice that has ended: vLLM's request. Seconds are 0 where it did not come so far.
struct ChoiceFigures {
  std::string_view finish;  // "stop", "length", "abort" or "error"
  int64_t num_prompt_tokens = 0;
  int64_t num_generated_tokens = 0;  // with the one that ended it
  double queue_s = 0;                // from its arrival to its first step
  double prefill_s = 0;              // from there to its first token
  double decode_s = 0;               // from there to its last one
  double total_s = 0;                // from its arrival to its end
};

// Of all choices that answer one prompt, when the last of them has ended.
struct PromptFigures {
  int num_choices = 1;
  int64_t most_generated_tokens = 0;  // of a choice
  std::optional<int> max_tokens;      // unset: as many as the context holds
};

// Threads may call it at the same time.
class Metrics {
 public:
  Metrics();

  void AfterStep(const EngineState& state);
  // The first token of a choice has come, so many seconds after its arrival, so many tokens of
  // its prompt having been in the cache.
  void FirstToken(double seconds, int64_t num_prompt_tokens, int64_t num_cached_tokens);
  // A later one: seconds since the one before.
  void TokenGap(double seconds);
  // Not for an end-of-text token, which is generated and is no part of the answer.
  void TokenOfAnswer();
  void Ended(const ChoiceFigures& figures);
  void PromptEnded(const PromptFigures& figures);
  // A request whose client went before its choices were known; it counts as one.
  void GoneUnread(double total_s);
  void Responded(int status);
  void SetConnections(int count);

  // `num_queued`: choices that the engine has not taken yet.
  std::string Text(std::string_view model_name, int num_queued) const;

 private:
  mutable std::mutex mutex_;
  EngineState state_;
  int64_t num_prompt_tokens_ = 0;
  int64_t num_cached_tokens_ = 0;
  int64_t num_generated_tokens_ = 0;
  int num_connections_ = 0;
  std::map<std::string, int64_t, std::less<>> ended_;  // by finish
  std::map<int, int64_t> responses_;                   // by status
  Histogram step_s_;
  Histogram step_tokens_;
  Histogram ttft_s_;
  Histogram gap_s_;
  Histogram per_token_s_;
  Histogram queue_s_;
  Histogram prefill_s_;
  Histogram decode_s_;
  Histogram inference_s_;
  Histogram total_s_;
  Histogram prompt_tokens_;
  Histogram generated_tokens_;
  Histogram most_generated_tokens_;
  Histogram num_choices_;
  Histogram max_tokens_;
};

}  // namespace convene::server
