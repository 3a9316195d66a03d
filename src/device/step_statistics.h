// What a step did, in numbers that benchmarks divide by its time. When its tasks ran is
// schedule/timeline.h.
#pragma once

#include <cstdint>

namespace convene::device {

// What the last step did; for bench (FLOPs and bytes). All but `tokens` counts this rank's part.
struct StepStatistics {
  int64_t tokens = 0;  // of all ranks
  int64_t logits_rows = 0;
  int64_t activated_experts = 0;  // distinct (layer, expert) whose weights were read
  int64_t weight_bytes = 0;       // read at least once: attention, activated experts, head
  int64_t kv_bytes = 0;           // of the cache, read once per sequence
  double flops = 0;               // executed multiply-adds x 2
  double expert_flops = 0;        // of these in the products of routed experts
  double expert_seconds = 0;      // that those took
};

}  // namespace convene::device
