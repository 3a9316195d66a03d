// Blocks of the KV cache: keys and values into the panels, and keys out of them. Many positions by
// transposing tiles of 16 positions x 16 elements; one position of a key is spread over as many
// lines as it has pairs of elements.
#pragma once

#include "kernels/cpu/elementwise.h"
#include "kernels/cpu/transpose_keys.h"

namespace convene::kernels::cpu {

using HalfQuads [[gnu::vector_size(32)]] = uint32_t;
using WholeQuads [[gnu::vector_size(64)]] = uint32_t;

inline constexpr int kTileSlots = 2 * kQuadTile;     // positions of a tile
inline constexpr int kTileElements = 2 * kQuadTile;  // of each position

// 16 elements of two positions to the (pair, position) order of a tile's line, and back.
[[gnu::always_inline]] inline void JoinPairs(const tensor::Bf16* even, const tensor::Bf16* odd,
                                             Quads& line) {
  HalfQuads a;
  HalfQuads b;
  __builtin_memcpy(&a, even, sizeof(a));
  __builtin_memcpy(&b, odd, sizeof(b));
  line = reinterpret_cast<Quads>(
      __builtin_shufflevector(a, b, 0, 8, 1, 9, 2, 10, 3, 11, 4, 12, 5, 13, 6, 14, 7, 15));
}
[[gnu::always_inline]] inline void SplitPairs(const Quads& line, tensor::Bf16* even,
                                              tensor::Bf16* odd) {
  const auto x = reinterpret_cast<WholeQuads>(line);
  const HalfQuads a = __builtin_shufflevector(x, x, 0, 2, 4, 6, 8, 10, 12, 14);
  const HalfQuads b = __builtin_shufflevector(x, x, 1, 3, 5, 7, 9, 11, 13, 15);
  __builtin_memcpy(even, &a, sizeof(a));
  __builtin_memcpy(odd, &b, sizeof(b));
}

// Two rows of 16 elements, element by element.
[[gnu::always_inline]] inline void Interleave(const tensor::Bf16* even, const tensor::Bf16* odd,
                                              tensor::Bf16* out) {
  using Row [[gnu::vector_size(32)]] = uint16_t;
  Row a;
  Row b;
  __builtin_memcpy(&a, even, sizeof(a));
  __builtin_memcpy(&b, odd, sizeof(b));
  const Halves both =
      __builtin_shufflevector(a, b, 0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23, 8, 24,
                              9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31);
  __builtin_memcpy(out, &both, sizeof(both));
}

// x (size) as bf16, then zeros up to the end of a vector.
template <class Isa>
inline void RoundRow(const float* x, int size, tensor::Bf16* out) {
  ForEachVector(size,
                [&](int i, int count) { Isa::StoreBf16(out + i, Isa::LoadPartial(x + i, count)); });
}

// Writes one key as row `slot` of the panel at `out`, whose steps hold `elements` elements.
template <class Isa, class T>
inline void ScatterKey(T* out, const T* key, int head_dim, int elements, int slot) {
  out += elements * slot;
  for (int i = 0; i < head_dim; ++i) {
    out[i / elements * elements * kKvBlockTokens + i % elements] = key[i];
  }
}

// Writes one value as column `slot` of panels of head_dim rows.
template <class Isa, class T>
inline void ScatterValue(T* out, const T* value, int head_dim, int elements, int slot) {
  for (int first = 0; first < head_dim; first += kPanelRows) {
    const int left = head_dim - first;
    const int rows = left < kPanelRows ? left : kPanelRows;
    const int width = (rows + kLanes - 1) / kLanes * kLanes;
    T* at = out + int64_t{first} * kKvBlockTokens + slot / elements * elements * width +
            slot % elements;
    for (int row = 0; row < rows; ++row) at[row * elements] = value[first + row];
  }
}

// A key or a value in the format of the cache, in `scratch`; returns its scale (kInt8).
template <class Isa>
inline float RoundForCache(KvFormat format, const float* x, int head_dim, void* scratch) {
  float scale = 0;
  if (format == KvFormat::kInt8) {
    const float top = LargestMagnitude<Isa>(x, head_dim);
    const auto inverse = Isa::Broadcast(Int8Inverse(top));
    ForEachVector(head_dim, [&](int i, int count) {
      Isa::StoreInt8(static_cast<int8_t*>(scratch) + i,
                     Isa::RoundToInts(Isa::LoadPartial(x + i, count) * inverse));
    });
    scale = top / 127.0f;
  } else {
    ForEachVector(head_dim, [&](int i, int count) {
      StoreActivations<Isa>(QueryFormat(format), scratch, i, Isa::LoadPartial(x + i, count),
                            kLanes);
    });
  }
  return scale;
}

// Row `row` as the position it is, in any format.
template <class Isa>
void StoreKvRow(const KvRows& rows, int row) {
  const int slot = rows.first_slot + row;
  const float* key = rows.keys + row * rows.key_stride;
  float joined[kMaxHeadDim];
  if (rows.shared_dim > 0) {
    const float* shared = rows.shared + row * rows.shared_stride;
    __builtin_memcpy(joined, shared, sizeof(float) * size_t(rows.shared_dim));
    __builtin_memcpy(joined + rows.shared_dim, key,
                     sizeof(float) * size_t(rows.key_dim - rows.shared_dim));
    key = joined;
  }
  const float* value = rows.values + row * rows.value_stride;
  std::byte* values = rows.block + KeyBlockBytes(rows.format, rows.key_dim);
  const auto store = [&]<class T>(T* scratch, int elements) {
    const bool int8 = rows.format == KvFormat::kInt8;
    const float key_scale = RoundForCache<Isa>(rows.format, key, rows.key_dim, scratch);
    ScatterKey<Isa>(reinterpret_cast<T*>(rows.block), scratch, rows.key_dim, elements, slot);
    if (int8) KeyScales(rows.block, rows.key_dim)[slot] = key_scale;
    if (rows.value_dim == 0) return;
    const float value_scale = RoundForCache<Isa>(rows.format, value, rows.value_dim, scratch);
    ScatterValue<Isa>(reinterpret_cast<T*>(values), scratch, rows.value_dim, elements, slot);
    if (int8) ValueScales(values, rows.value_dim)[slot] = value_scale;
  };
  alignas(64) float scratch[kMaxHeadDim];
  switch (rows.format) {
    case KvFormat::kF32:
      return store(scratch, 1);
    case KvFormat::kBf16:
      return store(reinterpret_cast<tensor::Bf16*>(scratch), 2);
    case KvFormat::kInt8:
      return store(reinterpret_cast<int8_t*>(scratch), 2);
  }
}

// bf16 keys of rows [first, first + kTileSlots), whose first is at the beginning of a tile; rows
// that are not there become zero.
template <class Isa>
inline void StoreKeyTiles(const KvRows& rows, int first) {
  constexpr int kRow = kMaxHeadDim + kTileElements;
  alignas(64) tensor::Bf16 keys[kTileSlots * kRow];
  const int pairs = (rows.key_dim + 1) / 2;
  for (int i = 0; i < kTileSlots; ++i) {
    const int row = first + i;
    tensor::Bf16* key = keys + i * kRow;
    if (row >= rows.num_rows) {
      __builtin_memset(key, 0, static_cast<size_t>(rows.key_dim + kTileElements) * 2);
      continue;
    }
    RoundRow<Isa>(rows.shared + row * rows.shared_stride, rows.shared_dim, key);
    RoundRow<Isa>(rows.keys + row * rows.key_stride, rows.key_dim - rows.shared_dim,
                  key + rows.shared_dim);
    key[rows.key_dim] = 0;  // the other half of an odd number's last pair
  }
  for (int pair = 0; pair < pairs; pair += kQuadTile) {
    Quads tile[kQuadTile];
#pragma GCC unroll 8
    for (int i = 0; i < kQuadTile; ++i) {
      const tensor::Bf16* even = keys + 2 * i * kRow + 2 * pair;
      JoinPairs(even, even + kRow, tile[i]);
    }
    TransposeTile(tile);
    const int count = pairs - pair < kQuadTile ? pairs - pair : kQuadTile;
    for (int i = 0; i < count; ++i) {
      std::byte* to =
          rows.block + (int64_t{pair + i} * kKvBlockTokens + rows.first_slot + first) * 4;
      __builtin_memcpy(to, &tile[i], sizeof(Quads));
    }
  }
}

// bf16 values of rows `row`, at an even position, and `row` + 1.
template <class Isa>
inline void StoreValuePair(const KvRows& rows, int row) {
  auto* values =
      reinterpret_cast<tensor::Bf16*>(rows.block + KeyBlockBytes(rows.format, rows.key_dim));
  const float* even = rows.values + row * rows.value_stride;
  const bool has_odd = row + 1 < rows.num_rows;
  ForEachVector(rows.value_dim, [&](int i, int count) {
    const int first = i / kPanelRows * kPanelRows;
    const int left = rows.value_dim - first;
    const int width = left < kPanelRows ? (left + kLanes - 1) / kLanes * kLanes : kPanelRows;
    alignas(32) tensor::Bf16 pair[2 * kLanes];
    Isa::StoreBf16(pair, Isa::LoadPartial(even + i, count));
    Isa::StoreBf16(pair + kLanes,
                   has_odd ? Isa::LoadPartial(even + rows.value_stride + i, count) : Isa::Zero());
    Interleave(pair, pair + kLanes,
               values + int64_t{first} * kKvBlockTokens + (rows.first_slot + row) * width +
                   2 * (i - first));
  });
}

template <class Isa>
void StoreKv(const KvRows& rows) {
  constexpr int kFewestInTile = 4;
  const bool writes_all = rows.num_rows == kKvBlockTokens && rows.format == KvFormat::kBf16 &&
                          rows.value_dim % kLanes == 0;
  if (rows.first_slot == 0 && !writes_all) {
    __builtin_memset(rows.block, 0, static_cast<size_t>(KvBlockBytes(rows)));
  }
  for (int row = 0; row < rows.num_rows;) {
    const int left = rows.num_rows - row;
    const bool begins_tile = (rows.first_slot + row) % kTileSlots == 0;
    if (rows.format != KvFormat::kBf16 || !begins_tile || left < kFewestInTile) {
      StoreKvRow<Isa>(rows, row++);
      continue;
    }
    StoreKeyTiles<Isa>(rows, row);
    for (int i = 0; i < kTileSlots && i < left; i += 2) StoreValuePair<Isa>(rows, row + i);
    row += kTileSlots;
  }
}

// A line of 16 positions' element pairs as bf16; bytes become bf16 exactly.
template <class Isa>
inline void LoadPairLine(KvFormat format, const std::byte* keys, int64_t first_element,
                         Quads& line) {
  if (format == KvFormat::kInt8) {
    const auto* from = reinterpret_cast<const int8_t*>(keys) + first_element;
    alignas(64) tensor::Bf16 wide[2 * kLanes];
    Isa::StoreBf16(wide, Isa::LoadInt8(from));
    Isa::StoreBf16(wide + kLanes, Isa::LoadInt8(from + kLanes));
    __builtin_memcpy(&line, wide, sizeof(line));
  } else {
    __builtin_memcpy(&line, keys + 2 * first_element, sizeof(line));
  }
}

template <class Isa>
inline typename Isa::Floats WidenBf16(const tensor::Bf16* from) {
  alignas(64) uint32_t bits[kLanes];
  for (int i = 0; i < kLanes; ++i) bits[i] = uint32_t{from[i]} << 16;
  return Isa::Load(reinterpret_cast<const float*>(bits));
}

// Elements [2 * pair, 2 * pair + kTileElements) of the positions from `first_slot` on.
template <class Isa>
inline void LoadKeyTile(const KeyRows& rows, int pair, int first_slot) {
  const int pairs = (rows.key_dim + 1) / 2;
  Quads tile[kQuadTile];
#pragma GCC unroll 8
  for (int i = 0; i < kQuadTile; ++i) {
    tile[i] = Quads{};
    if (pair + i < pairs) {
      const int64_t first = 2 * (int64_t{pair + i} * kKvBlockTokens + first_slot);
      LoadPairLine<Isa>(rows.format, rows.block, first, tile[i]);
    }
  }
  TransposeTile(tile);
  alignas(64) tensor::Bf16 keys[kTileSlots * kTileElements];
#pragma GCC unroll 8
  for (int i = 0; i < kQuadTile; ++i) {
    SplitPairs(tile[i], keys + 2 * i * kTileElements, keys + (2 * i + 1) * kTileElements);
  }
  const int left = rows.key_dim - 2 * pair;
  for (int i = 0; i < kTileSlots && first_slot + i < rows.num_slots; ++i) {
    const int slot = first_slot + i;
    auto key = WidenBf16<Isa>(keys + i * kTileElements);
    if (rows.format == KvFormat::kInt8) {
      key = key * Isa::Broadcast(KeyScales(rows.block, rows.key_dim)[slot]);
    }
    Isa::StorePartial(rows.out + slot * rows.out_stride + 2 * pair, key,
                      left < kLanes ? left : kLanes);
  }
}

template <class Isa>
void LoadKeys(const KeyRows& rows) {
  if (rows.format == KvFormat::kF32) {
    const auto* keys = reinterpret_cast<const float*>(rows.block);
    for (int slot = 0; slot < rows.num_slots; ++slot) {
      float* out = rows.out + slot * rows.out_stride;
      for (int i = 0; i < rows.key_dim; ++i) out[i] = keys[int64_t{i} * kKvBlockTokens + slot];
    }
    return;
  }
  for (int slot = 0; slot < rows.num_slots; slot += kTileSlots) {
    for (int i = 0; i < rows.key_dim; i += kTileElements) LoadKeyTile<Isa>(rows, i / 2, slot);
  }
}

}  // namespace convene::kernels::cpu
