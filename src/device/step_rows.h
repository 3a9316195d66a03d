// The rows of one step: the tokens of all its sequences one after the other, and their positions.
// It holds no activations.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "device/step_inputs.h"
#include "model/model_spec.h"

namespace convene::device {

// Consecutive rows of one sequence whose positions lie in one block of the KV cache.
struct BlockRows {
  int first_row = 0;
  int num_rows = 0;
};

class StepRows {
 public:
  explicit StepRows(const model::ModelSpec& spec) : spec_(spec) {}

  // Lays out a step; keeps `step` until the next call.
  void Begin(std::span<const SequenceStep> step);

  std::span<const SequenceStep> step() const { return step_; }
  int num_rows() const { return static_cast<int>(position_.size()); }
  int first_row(int sequence_idx) const { return first_row_[sequence_idx]; }
  int sequence(int row) const { return sequence_[row]; }
  int position(int64_t row) const { return position_[row]; }
  int32_t token(int64_t row) const { return token_[row]; }
  int block(int64_t row) const {
    return step_[sequence_[row]].blocks[position_[row] / kKvBlockTokens];
  }
  // All rows, in their order.
  std::span<const BlockRows> block_rows() const { return block_rows_; }

  // Rows whose logits are wanted, in increasing order.
  std::span<const int32_t> wanted() const { return wanted_; }

 private:
  const model::ModelSpec& spec_;
  std::span<const SequenceStep> step_;
  std::vector<int32_t> first_row_;  // per sequence
  std::vector<int32_t> sequence_;   // per row, as are the next
  std::vector<int32_t> position_;
  std::vector<int32_t> token_;
  std::vector<int32_t> wanted_;
  std::vector<BlockRows> block_rows_;
};

}  // namespace convene::device
