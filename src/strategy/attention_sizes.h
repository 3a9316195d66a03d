// How much a step's attention has to see, counted from its sequences: the sizes of schedule/ from
// kTokens to kInputCached. The runtime counts a step that ran, the planner one that it imagines.
#pragma once

#include <cstdint>
#include <span>

#include "schedule/schedule.h"

namespace convene::strategy {

// What a sequence has in a step.
struct SequenceRows {
  int64_t first_position = 0;  // tokens before these are in the cache
  int64_t num_tokens = 1;
  int64_t num_wanted = 1;    // of them, the last ones
  bool is_expanded = false;  // its prompt is long enough (AttentionRole::Expands)
  int64_t prompt_length = 0;
  int64_t input_length = 0;  // of an encoder
};

struct AttentionShape {
  int window = 0;      // as model::AttentionSpec's
  bool causal = true;  // likewise
};

// One of the kinds from kTokens to kInputCached, for the ranks that compute these sequences;
// `wanted`: only of tokens whose logits are wanted.
double CountAttention(schedule::SizeKind kind, bool wanted, const AttentionShape& shape,
                      std::span<const SequenceRows> sequences);

}  // namespace convene::strategy
