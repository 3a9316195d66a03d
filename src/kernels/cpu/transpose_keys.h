// Values that are a part of the keys (a latent, model/model_spec.h): the panel of keys that a block
// of the KV cache holds, as panels of values. A block is transposed once for all query heads that
// share it, in the second-level cache.
#pragma once

#include "kernels/kernel_set.h"

namespace convene::kernels::cpu {

// A step of two keys' elements (bf16) for two positions: what the transposition moves as a whole.
using Quads [[gnu::vector_size(64)]] = uint64_t;
using Halves [[gnu::vector_size(64)]] = uint16_t;

inline constexpr int kQuadTile = 8;

// (element pair, position pair) of 2 x 2 elements to (position pair, element pair): a, b, c, d of
// two positions' pairs become a, c, b, d.
[[gnu::always_inline]] inline void SwapMiddle(Quads& x) {
  const auto h = reinterpret_cast<Halves>(x);
  x = reinterpret_cast<Quads>(__builtin_shufflevector(h, h, 0, 2, 1, 3, 4, 6, 5, 7, 8, 10, 9, 11,
                                                      12, 14, 13, 15, 16, 18, 17, 19, 20, 22, 21,
                                                      23, 24, 26, 25, 27, 28, 30, 29, 31));
}

[[gnu::always_inline]] inline void TransposeTile(Quads (&t)[kQuadTile]) {
  Quads u[kQuadTile];
#pragma GCC unroll 4
  for (int i = 0; i < 8; i += 2) {
    u[i] = __builtin_shufflevector(t[i], t[i + 1], 0, 8, 2, 10, 4, 12, 6, 14);
    u[i + 1] = __builtin_shufflevector(t[i], t[i + 1], 1, 9, 3, 11, 5, 13, 7, 15);
  }
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) {
    const int at = i / 2 * 4 + i % 2;
    t[at] = __builtin_shufflevector(u[at], u[at + 2], 0, 1, 8, 9, 4, 5, 12, 13);
    t[at + 2] = __builtin_shufflevector(u[at], u[at + 2], 2, 3, 10, 11, 6, 7, 14, 15);
  }
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) {
    u[i] = __builtin_shufflevector(t[i], t[i + 4], 0, 1, 2, 3, 8, 9, 10, 11);
    u[i + 4] = __builtin_shufflevector(t[i], t[i + 4], 4, 5, 6, 7, 12, 13, 14, 15);
  }
#pragma GCC unroll 8
  for (int i = 0; i < 8; ++i) t[i] = u[i];
}

// Elements [0, value_dim) of the keys at `keys` (float32 or bf16, a whole block) as a block's
// values. What a key has behind them may fill a panel's padding: nobody reads it.
template <class Isa, bool kFloat>
inline void TransposeKeys(const std::byte* keys, int value_dim, std::byte* values) {
  for (int first = 0; first < value_dim; first += kPanelRows) {
    const int left = value_dim - first;
    const int width = left < kPanelRows ? (left + kLanes - 1) / kLanes * kLanes : kPanelRows;
    std::byte* panel = values + int64_t{first} * kKvBlockTokens * (kFloat ? 4 : 2);
    if constexpr (kFloat) {
      const auto* from = reinterpret_cast<const float*>(keys);
      auto* to = reinterpret_cast<float*>(panel);
      for (int row = 0; row < width; ++row) {
        for (int slot = 0; slot < kKvBlockTokens; ++slot) {
          to[slot * width + row] =
              row < left ? from[int64_t{first + row} * kKvBlockTokens + slot] : 0.0f;
        }
      }
      continue;
    }
    const int pairs = (left + 1) / 2;  // of elements that are there
    for (int pair = 0; pair < width / 2; pair += kQuadTile) {
      for (int slot = 0; slot < kKvBlockTokens; slot += 2 * kQuadTile) {
        Quads tile[kQuadTile];
        for (int i = 0; i < kQuadTile; ++i) {
          const std::byte* from =
              keys + (int64_t{first / 2 + pair + i} * kKvBlockTokens + slot) * 4;
          tile[i] = Quads{};
          if (pair + i < pairs) __builtin_memcpy(&tile[i], from, sizeof(Quads));
          SwapMiddle(tile[i]);
        }
        TransposeTile(tile);
        for (int i = 0; i < kQuadTile; ++i) {
          std::byte* to = panel + (int64_t{slot / 2 + i} * width + 2 * pair) * 4;
          __builtin_memcpy(to, &tile[i], sizeof(Quads));
        }
      }
    }
  }
}

}  // namespace convene::kernels::cpu
