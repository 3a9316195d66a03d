// Attention of rows of queries to keys and values in blocks of a paged cache, for prompts and for
// generated tokens alike: softmax of spans of kSpanTokens keys at absolute positions, folded in
// their order (decision 0001), so that a row's result depends on its sequence alone.
#pragma once

#include <cstdint>
#include <vector>

#include "kernels/cuda/stream.h"

namespace convene::kernels::cuda {

// A block of one layer of the cache: keys [kv_heads][kKvBlockTokens][key_dim], then values
// [kv_heads][kKvBlockTokens][value_dim] in bf16; where values are part of keys, keys only.
constexpr int64_t KvBlockElements(int kv_heads, int key_dim, int value_dim) {
  return int64_t{kv_heads} * 64 * (key_dim + value_dim);
}

// The part of a sequence that attends: rows [first_row, first_row + num_rows) of the queries at
// positions first_position and following; their outputs are rows first_out_row and following.
struct QueryRows {
  int32_t first_row = 0;
  int32_t num_rows = 0;
  int32_t first_position = 0;
  int32_t num_keys = 0;  // 0: causal; otherwise every query sees this many keys
  int32_t first_out_row = 0;
  int32_t first_block = 0;  // of its blocks, in AttentionInputs::blocks
};

struct AttentionShape {
  int num_heads = 0;
  int num_kv_heads = 0;
  // Up to 256; where values are part of keys also up to 576 and 512. Multiples of 8 are faster.
  int key_dim = 0;
  int value_dim = 0;
  int value_in_key = -1;  // less than 0: blocks hold values; otherwise where in a key its value is
  float scale = 0;
  int window = 0;  // 0: none

  bool operator==(const AttentionShape&) const = default;
};

// What one block of a grid does. Rows of a sequence's KV head are its tokens' rows one after the
// other, of each the heads that share the KV head: a tile is so many of these rows.
struct AttentionWork {
  int32_t sequence = 0;
  int32_t kv_head = 0;
  int32_t first_row = 0;
  int32_t num_rows = 0;
  int32_t first_span = 0;
  int32_t num_spans = 0;
  // Where among the partial sums its own begin, in units of kPartialUnit floats, or less than 0.
  int32_t partial = -1;
  // Of a tile that is divided among blocks: each span's sums are written apart, and folded after.
  int16_t is_part = 0;
  int16_t is_large = 0;  // a prompt's tile
};
inline constexpr int kPartialUnit = 32;

// How one step's attention is divided among the blocks of a grid, made on the host once for all
// layers of one shape, window and sort of rows.
struct AttentionPlan {
  std::vector<AttentionWork> work;
  // Tiles whose partial sums are folded afterwards; as `work`, of all spans.
  std::vector<AttentionWork> folds;
  int64_t partial_floats = 0;
};
AttentionPlan PlanAttention(const AttentionShape& shape, const std::vector<QueryRows>& sequences,
                            int num_multiprocessors);
// No plan of steps of so many rows and sequences needs more than this.
int64_t MostPartialFloats(const AttentionShape& shape, int num_rows, int context);

struct AttentionInputs {
  const AttentionWork* work = nullptr;  // (num_work), of a plan, as are the folds
  int num_work = 0;
  const AttentionWork* folds = nullptr;  // (num_folds)
  int num_folds = 0;
  const QueryRows* sequences = nullptr;
  const int32_t* blocks = nullptr;              // numbers of blocks, of all sequences
  const std::byte* const* kv_blocks = nullptr;  // where the blocks of the layer lie
  const Bf16* queries = nullptr;                // (rows, num_heads, key_dim)
  int64_t query_stride = 0;                     // elements from row to row
  const float* sinks = nullptr;                 // (num_heads) or null
  // Added to scores by distance, before the scale: as kernels::DistanceBias of head 0; or null.
  const float* bias = nullptr;
  int64_t bias_head_stride = 0;
  int bias_reach = 0;
  float* partials = nullptr;  // (partial_floats)
  Bf16* out = nullptr;        // (out rows, num_heads, value_dim)
  int64_t out_stride = 0;     // elements from row to row
};

void Attend(const AttentionShape& shape, const AttentionInputs& inputs, StreamHandle stream);

}  // namespace convene::kernels::cuda
