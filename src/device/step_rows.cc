#include "device/step_rows.h"

#include "base/check.h"

namespace convene::device {

void StepRows::Begin(std::span<const SequenceStep> step) {
  step_ = step;
  first_row_.clear();
  sequence_.clear();
  position_.clear();
  token_.clear();
  wanted_.clear();
  block_rows_.clear();
  for (int sequence_idx = 0; sequence_idx < std::ssize(step); ++sequence_idx) {
    const SequenceStep& sequence = step[sequence_idx];
    const int num_tokens = static_cast<int>(sequence.tokens.size());
    const int end = sequence.first_position + num_tokens;
    CHECK(num_tokens > 0);
    CHECK(std::ssize(sequence.blocks) * kKvBlockTokens >= end, "{} blocks for {} positions",
          sequence.blocks.size(), end);
    first_row_.push_back(num_rows());
    for (int i = 0; i < num_tokens; ++i) {
      CHECK(sequence.tokens[i] >= 0 && sequence.tokens[i] < spec_.vocab_size,
            "token {} in a vocabulary of {}", sequence.tokens[i], spec_.vocab_size);
      if (i >= sequence.first_logits_token) wanted_.push_back(num_rows());
      const int position = sequence.first_position + i;
      if (i == 0 || position % kKvBlockTokens == 0) block_rows_.push_back({num_rows(), 0});
      ++block_rows_.back().num_rows;
      sequence_.push_back(sequence_idx);
      position_.push_back(position);
      token_.push_back(sequence.tokens[i]);
    }
  }
}

}  // namespace convene::device
