// The text by which models are scored: its tokens, in windows that share nothing. What is computed
// from a model's answers is logits_difference.h.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace convene::evaluate {

struct ScoredText {
  std::vector<int32_t> tokens;
  int window = 0;  // tokens per window

  // Point into `tokens`; the last one may be shorter.
  std::vector<std::span<const int32_t>> Windows() const;
  // Every token of a window but its first.
  int64_t num_scored() const;
};

}  // namespace convene::evaluate
