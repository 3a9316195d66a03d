// The rows of one step: the tokens of all its sequences one after the other, their positions and
// rotary angles, and the tiles of attention work. It holds no activations.
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <vector>

#include "hardware/thread_pool.h"
#include "model/model_spec.h"
#include "runtime/step_inputs.h"

namespace convene::runtime {

// Consecutive tokens of one sequence times query heads of one KV head, as one attention kernel
// call.
struct AttentionUnit {
  int sequence_idx = 0;
  int kv_head = 0;
  int first_head = 0;
  int num_heads = 0;
  int first_token = 0;  // in the sequence's tokens of this step
  int num_tokens = 0;
  int first_out_row = 0;
};

// Consecutive rows of one sequence whose positions lie in one block of the KV cache.
struct BlockRows {
  int first_row = 0;
  int num_rows = 0;
};

class StepRows {
 public:
  explicit StepRows(const model::ModelSpec& spec) : spec_(spec) {}

  // Lays out a step; keeps `step` until the next call.
  void Begin(std::span<const SequenceStep> step, hardware::ThreadPool& pool);

  std::span<const SequenceStep> step() const { return step_; }
  int num_rows() const { return static_cast<int>(position_.size()); }
  int first_row(int sequence_idx) const { return first_row_[sequence_idx]; }
  int sequence(int row) const { return sequence_[row]; }
  int position(int64_t row) const { return position_[row]; }
  int32_t token(int64_t row) const { return token_[row]; }
  int block(int64_t row) const {
    return step_[sequence_[row]].blocks[position_[row] / kKvBlockTokens];
  }
  // (rotary_dim / 2) each
  const float* cosine(int64_t row) const { return cosine_.data() + row * half_rotary_dim(); }
  const float* sine(int64_t row) const { return sine_.data() + row * half_rotary_dim(); }

  // All rows, in their order.
  std::span<const BlockRows> block_rows() const { return block_rows_; }

  // Rows whose logits are wanted, in increasing order.
  std::span<const int32_t> wanted() const { return wanted_; }

  // The attention work of a layer of this shape: of all rows, each writing output row = row; or of
  // the wanted rows only, the i-th of them writing output row i.
  void AttentionUnits(const model::AttentionSpec& attention, bool only_wanted,
                      std::vector<AttentionUnit>* units) const;

 private:
  int half_rotary_dim() const { return spec_.rope.rotary_dim / 2; }
  void ComputeAngles(hardware::ThreadPool& pool);
  const std::vector<float>& Frequencies(int length);

  const model::ModelSpec& spec_;
  std::span<const SequenceStep> step_;
  std::vector<int32_t> first_row_;  // per sequence
  std::vector<int32_t> sequence_;   // per row, as are the next
  std::vector<int32_t> position_;
  std::vector<int32_t> token_;
  std::vector<int32_t> wanted_;
  std::vector<BlockRows> block_rows_;
  std::vector<const float*> frequencies_;  // per row
  std::map<int, std::vector<float>> frequencies_of_length_;
  std::vector<float> cosine_;
  std::vector<float> sine_;
};

}  // namespace convene::runtime
