// The sizes for which attention is compiled, and what a plan must know of them. Host and device
// code.
#pragma once

#include <cstdint>

#include "kernels/cuda/attention.h"

namespace convene::kernels::cuda {

inline constexpr int kKeysOfBlock = 64;  // kKvBlockTokens
inline constexpr int kKeysOfSpan = 512;  // kSpanTokens
inline constexpr int kBlocksOfSpan = kKeysOfSpan / kKeysOfBlock;

// How the warps of a block share a tile: `row_warps` have `row_tiles` times 16 rows each; the
// `column_warps` of the same rows divide keys of the first product, columns of the second one.
struct AttentionTile {
  int row_tiles = 1;
  int row_warps = 1;
  int column_warps = 1;

  constexpr int rows_of_warp() const { return 16 * row_tiles; }
  constexpr int rows() const { return rows_of_warp() * row_warps; }
};

// Dimensions are the largest; smaller ones are padded with zeros.
struct AttentionForm {
  int key_dim = 0;
  int value_dim = 0;
  bool value_in_key = false;  // values are multiplied where the keys lie
  AttentionTile large;        // of prompts
  AttentionTile small;        // of a few tokens

  // Blocks of four warps, whose shared memory is up to half of what there is, come in pairs.
  constexpr int blocks_of_multiprocessor() const {
    return large.row_warps * large.column_warps <= 4 ? 2 : 1;
  }
  constexpr const AttentionTile& tile(bool is_large) const { return is_large ? large : small; }
  // Whether a thread's sums of all spans fit its registers beside those of the current one.
  constexpr bool KeepsTotals(bool is_large) const {
    return tile(is_large).row_tiles * value_dim / tile(is_large).column_warps <= 128;
  }
};

inline constexpr AttentionForm kAttentionForms[] = {
    {32, 32, false, {2, 4, 1}, {1, 2, 2}},   {64, 64, false, {2, 4, 1}, {1, 1, 4}},
    {96, 96, false, {2, 4, 1}, {1, 2, 2}},   {128, 128, false, {2, 4, 1}, {1, 1, 4}},
    {192, 128, false, {1, 8, 1}, {1, 1, 8}}, {256, 256, false, {1, 8, 1}, {1, 1, 8}},
    {576, 512, true, {1, 2, 4}, {1, 1, 8}},
};
inline constexpr int kNumAttentionForms = sizeof(kAttentionForms) / sizeof(kAttentionForms[0]);

// A property of the shape alone: so are the results. Less than 0: none.
inline int AttentionFormOf(const AttentionShape& shape) {
  for (int i = 0; i < kNumAttentionForms; ++i) {
    const AttentionForm& form = kAttentionForms[i];
    if (shape.key_dim > form.key_dim || shape.value_dim > form.value_dim) continue;
    if (form.value_in_key && (shape.value_in_key < 0 || shape.value_in_key % 8 != 0 ||
                              shape.value_in_key + form.value_dim > form.key_dim)) {
      continue;
    }
    return i;
  }
  return -1;
}

// Partial sums of so many rows, filled up to whole warps: maximum and sum of each, then the
// outputs. A multiple of kPartialUnit.
constexpr int64_t PartialFloats(const AttentionForm& form, bool is_large, int num_rows) {
  const int warp_rows = form.tile(is_large).rows_of_warp();
  return int64_t{num_rows + warp_rows - 1} / warp_rows * warp_rows * (form.value_dim + 2);
}

}  // namespace convene::kernels::cuda
