// Sequences for tests of the scheduler, and steps that are computed at once.
#pragma once

#include <cstdint>
#include <memory>
#include <numeric>
#include <vector>

#include "engine/scheduler.h"

namespace convene::engine {

inline constexpr int kBlock = device::kKvBlockTokens;

inline std::unique_ptr<Sequence> MakeSequence(int prompt_length, int32_t first_token = 0) {
  auto sequence = std::make_unique<Sequence>();
  sequence->tokens.resize(static_cast<size_t>(prompt_length));
  std::iota(sequence->tokens.begin(), sequence->tokens.end(), first_token);
  sequence->prompt_length = prompt_length;
  return sequence;
}

// Completes the step and lets every sequence that reached its end generate `token`.
inline void Advance(Scheduler& scheduler, const std::vector<ScheduledTokens>& step,
                    int32_t token = 7) {
  scheduler.Complete(step);
  for (const ScheduledTokens& scheduled : step) {
    if (scheduled.sequence->num_pending() == 0) scheduled.sequence->tokens.push_back(token);
  }
}

}  // namespace convene::engine
