#include "runtime/step_rows.h"

#include <algorithm>
#include <cmath>

#include "base/check.h"
#include "kernels/kernel_set.h"

namespace convene::runtime {

void StepRows::Begin(std::span<const SequenceStep> step, hardware::ThreadPool& pool) {
  step_ = step;
  first_row_.clear();
  sequence_.clear();
  position_.clear();
  token_.clear();
  wanted_.clear();
  block_rows_.clear();
  frequencies_.clear();
  if (spec_.rope.DependsOnLength()) frequencies_of_length_.clear();
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
      frequencies_.push_back(Frequencies(std::max(sequence.prompt_length, position + 1)).data());
    }
  }
  ComputeAngles(pool);
}

const std::vector<float>& StepRows::Frequencies(int length) {
  const int key = spec_.rope.DependsOnLength() ? length : 0;
  const auto found = frequencies_of_length_.find(key);
  if (found != frequencies_of_length_.end()) return found->second;
  return frequencies_of_length_.emplace(key, model::InverseFrequencies(spec_.rope, length))
      .first->second;
}

void StepRows::ComputeAngles(hardware::ThreadPool& pool) {
  const int half = half_rotary_dim();
  const auto factor = static_cast<float>(spec_.rope.attention_factor);
  cosine_.resize(size_t(num_rows()) * half);
  sine_.resize(size_t(num_rows()) * half);
  pool.ParallelFor(
      num_rows(),
      [&](int64_t row, int) {
        for (int i = 0; i < half; ++i) {
          // The product is rounded to float as in the reference implementations.
          const float angle = static_cast<float>(position_[row]) * frequencies_[row][i];
          cosine_[row * half + i] = static_cast<float>(std::cos(double{angle})) * factor;
          sine_[row * half + i] = static_cast<float>(std::sin(double{angle})) * factor;
        }
      },
      8);
}

void StepRows::AttentionUnits(const model::AttentionSpec& attention, bool only_wanted,
                              std::vector<AttentionUnit>* units) const {
  units->clear();
  const int group = attention.num_heads / attention.num_kv_heads;
  const int heads_per_unit = std::min(group, kernels::kAttentionRows);
  const int tokens_per_unit = std::max(1, kernels::kAttentionRows / heads_per_unit);
  int out_row = 0;
  for (int sequence_idx = 0; sequence_idx < std::ssize(step_); ++sequence_idx) {
    const SequenceStep& sequence = step_[sequence_idx];
    const int num_tokens = static_cast<int>(sequence.tokens.size());
    const int begin = only_wanted ? std::min(sequence.first_logits_token, num_tokens) : 0;
    for (int kv_head = 0; kv_head < attention.num_kv_heads; ++kv_head) {
      for (int head = 0; head < group; head += heads_per_unit) {
        for (int token = begin; token < num_tokens; token += tokens_per_unit) {
          units->push_back({.sequence_idx = sequence_idx,
                            .kv_head = kv_head,
                            .first_head = kv_head * group + head,
                            .num_heads = std::min(heads_per_unit, group - head),
                            .first_token = token,
                            .num_tokens = std::min(tokens_per_unit, num_tokens - token),
                            .first_out_row = out_row + token - begin});
        }
      }
    }
    out_row += num_tokens - begin;
  }
}

}  // namespace convene::runtime
