// What a step is given: tokens of sequences, or inputs of an encoder, and where their keys and
// values lie. What comes of it is step_outputs.h.
#pragma once

#include <cstdint>
#include <span>

#include "strategy/kv_block_tokens.h"

namespace convene::device {

using strategy::kKvBlockTokens;

// What one sequence contributes to a step.
struct SequenceStep {
  std::span<const int32_t> tokens;  // at least one
  int first_position = 0;           // of tokens[0]
  // Block i holds positions [64 i, 64 i + 64); covers first_position + tokens.size() positions.
  // Blocks that hold earlier positions were written by earlier steps and are not changed.
  std::span<const int32_t> blocks;
  int prompt_length = 0;       // in tokens; RoPE's length of the positions before it (model/rope.h)
  int first_logits_token = 0;  // logits are wanted for tokens[first_logits_token ...]
  // Of these nothing but the largest is looked at: a device may find it, and keep the others.
  bool largest_suffices = false;
  // Of an encoder-decoder: the blocks and the length of the input, which Encode has seen.
  std::span<const int32_t> encoder_blocks = {};
  int encoder_length = 0;
  // Of the ranks that compute attention for this sequence; blocks are those of its cache.
  int group = 0;
};

// An input of an encoder, whole.
struct EncoderInput {
  std::span<const int32_t> tokens;  // at least one
  // Block i holds positions [64 i, 64 i + 64): afterwards the keys and values that the decoder's
  // layers attend to.
  std::span<const int32_t> blocks;
  int group = 0;  // as SequenceStep
};

}  // namespace convene::device
