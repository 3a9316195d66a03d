// A tile of rows against keys and values of a paged cache, block of keys after block of keys, as
// FlashAttention-2 does it (Dao, arXiv 2307.08691): scores and outputs stay in registers, keys and
// values come to shared memory one block ahead. Within a span of kKeysOfSpan keys the softmax is
// online; a span's sums are then folded with those of the spans before it. A block of keys that a
// row does not see multiplies its sums by one and adds zeros. Device code.
#pragma once

#include <cstdint>
#include <type_traits>

#include "kernels/cuda/attention_fold.cuh"
#include "kernels/cuda/attention_load.cuh"
#include "kernels/kernel_set.h"

namespace convene::kernels::cuda {

inline constexpr unsigned kAllOfWarp = 0xffffffff;

template <int kForm, bool kLarge>
class TileOfAttention {
  using Memory = AttentionMemory<kForm, kLarge>;
  using Partial = PartialSums<kForm, kLarge>;
  static constexpr AttentionForm kSizes = Memory::kSizes;
  static constexpr AttentionTile kTile = Memory::kTile;
  static constexpr int kTiles = kTile.row_tiles;
  static constexpr int kColumnWarps = kTile.column_warps;
  static constexpr int kThreads = 32 * kTile.row_warps * kColumnWarps;
  static constexpr int kColumnTiles = Partial::kColumnTiles;
  static constexpr int kKeyTiles = kKeysOfBlock / 8;
  static constexpr bool kKeepsTotals = kSizes.KeepsTotals(kLarge);
  static_assert(kSizes.key_dim % 32 == 0 && Partial::kColumns % 16 == 0);
  static_assert(kColumnWarps == 1 || kTiles == 1);

  // Of the thread's rows: row g and g + 8 of each row tile, columns as MmaBf16 has them.
  struct Sums {
    float out[kTiles][kColumnTiles][4];
    float top[kTiles][2];
    float sum[kTiles][2];
  };
  // Of all spans so far; outputs lie in memory where registers cannot hold them as well.
  struct NoOutputs {
    float top[kTiles][2];
    float sum[kTiles][2];
  };
  using Totals = std::conditional_t<kKeepsTotals, Sums, NoOutputs>;
  using Scores = float[kTiles][kKeyTiles][4];

 public:
  __device__ __forceinline__ TileOfAttention(const AttentionParameters& parameters,
                                             const AttentionWork& work)
      : p_(parameters),
        work_(work),
        rows_(parameters.in.sequences[work.sequence]),
        thread_(static_cast<int>(threadIdx.x)),
        lane_(thread_ % 32),
        row_warp_(thread_ / 32 / kColumnWarps),
        column_warp_(thread_ / 32 % kColumnWarps) {
    queries_ = reinterpret_cast<Bf16*>(DynamicShared());
    keys_ = queries_ + Memory::kQueries;
    exchange_ = reinterpret_cast<float4*>(keys_ + 2 * (Memory::kKeys + Memory::kValues));
    first_position_ = rows_.first_position + TileRowOf(p_, work_, 0).token;
    last_position_ = rows_.first_position + TileRowOf(p_, work_, work_.num_rows - 1).token;
    begin_key_ = FirstKey(first_position_);
    end_key_ = EndKey(last_position_);
  }

  __device__ __forceinline__ void Run() {
    const int first_block = max(work_.first_span * kBlocksOfSpan, begin_key_ / kKeysOfBlock);
    const int end_block = min((work_.first_span + work_.num_spans) * kBlocksOfSpan,
                              (end_key_ + kKeysOfBlock - 1) / kKeysOfBlock);
    // Where blocks lie is looked up in time: a number two rounds before its block is copied.
    const int32_t* numbers = p_.in.blocks + rows_.first_block;
    const int last = end_block - 1;
    LoadQueries();
    LoadBlock(p_.in.kv_blocks[numbers[first_block]], first_block, 0);
    CopyAsyncCommit();
    const std::byte* next = p_.in.kv_blocks[numbers[min(first_block + 1, last)]];
    int number = numbers[min(first_block + 2, last)];

    Totals totals = {};
    int stage = 0;
    for (int block = first_block; block < end_block;) {
      const int span = block / kBlocksOfSpan;
      const bool is_first = block == first_block;
      const int end_of_span = min((span + 1) * kBlocksOfSpan, end_block);
      Sums sums;
      Clear(sums);
#pragma unroll 1
      for (; block < end_of_span; ++block, stage ^= 1) {
        CopyAsyncWait<0>();
        __syncthreads();  // the block is there, and nobody reads the one before it
        if (block < last) {
          LoadBlock(next, block + 1, stage ^ 1);
          next = p_.in.kv_blocks[number];
          number = numbers[min(block + 3, last)];
        }
        CopyAsyncCommit();
        AddBlock(block, keys_ + stage * (Memory::kKeys + Memory::kValues), sums);
      }
      EndSpan(span, is_first, block == end_block, sums, totals);
    }
  }

 private:
  __device__ __forceinline__ int FirstKey(int position) const {
    return p_.shape.window > 0 ? max(0, position - p_.shape.window + 1) : 0;
  }
  __device__ __forceinline__ int EndKey(int position) const {
    return rows_.num_keys > 0 ? rows_.num_keys : position + 1;
  }
  __device__ __forceinline__ int RowOf(int tile, int half) const {
    return (row_warp_ * kTiles + tile) * 16 + half * 8 + lane_ / 4;
  }

  __device__ __forceinline__ void LoadQueries() const {
    LoadRows<kThreads, Memory::kRows, kSizes.key_dim>(
        queries_, thread_, p_.is_aligned, p_.shape.key_dim,
        [&](int row) {
          const TileRow place = TileRowOf(p_, work_, row);
          return p_.in.queries + (int64_t{rows_.first_row} + place.token) * p_.in.query_stride +
                 int64_t{place.head} * p_.shape.key_dim;
        },
        [&](int row) { return row < work_.num_rows; });
  }

  // What no row of the tile sees may be anything, and does not come.
  __device__ __forceinline__ void LoadBlock(const std::byte* block, int index, int stage) const {
    const auto* elements = reinterpret_cast<const Bf16*>(block);
    const int key_dim = p_.shape.key_dim;
    const Bf16* keys = elements + int64_t{work_.kv_head} * kKeysOfBlock * key_dim;
    Bf16* shared = keys_ + stage * (Memory::kKeys + Memory::kValues);
    BlockRows rows = {.from = keys,
                      .dim = key_dim,
                      .stride = key_dim,
                      .first = begin_key_ - index * kKeysOfBlock,
                      .end = end_key_ - index * kKeysOfBlock};
    LoadBlockRows<kThreads, kSizes.key_dim>(shared, thread_, p_.is_aligned, rows);
    if constexpr (!kSizes.value_in_key) {
      rows.dim = p_.shape.value_dim;
      if (p_.shape.value_in_key >= 0) {
        rows.from = keys + p_.shape.value_in_key;
      } else {
        rows.from = elements + int64_t{kKeysOfBlock} *
                                   (p_.shape.num_kv_heads * key_dim + work_.kv_head * rows.dim);
        rows.stride = rows.dim;
      }
      LoadBlockRows<kThreads, kSizes.value_dim>(shared + Memory::kKeys, thread_, p_.is_aligned,
                                                rows);
    }
  }

  static __device__ __forceinline__ void Clear(Sums& sums) {
#pragma unroll
    for (int tile = 0; tile < kTiles; ++tile) {
#pragma unroll
      for (int column = 0; column < kColumnTiles; ++column) {
#pragma unroll
        for (int i = 0; i < 4; ++i) sums.out[tile][column][i] = 0;
      }
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        sums.top[tile][half] = NoKeys();
        sums.sum[tile][half] = 0;
      }
    }
  }

  __device__ __forceinline__ void AddBlock(int block, const Bf16* keys, Sums& sums) {
    Scores scores;
    MultiplyKeys(keys, scores);
    const int begin = block * kKeysOfBlock;
    if (p_.in.bias != nullptr) AddBias(begin, scores);
    const bool all_see =
        begin >= FirstKey(last_position_) && begin + kKeysOfBlock <= EndKey(first_position_);
    if (!all_see) Mask(begin, scores);
    Softmax(scores, sums);
    const Bf16* values = kSizes.value_in_key ? keys + p_.shape.value_in_key : keys + Memory::kKeys;
    MultiplyValues(values, scores, sums);
  }

  // scores (rows of the warp, keys) = q . k, of kCount tiles of 8 keys from `first` on.
  template <int kCount>
  __device__ __forceinline__ void MultiplyKeys(const Bf16* keys, int first,
                                               float (&scores)[kTiles][kCount][4]) const {
#pragma unroll
    for (int tile = 0; tile < kTiles; ++tile) {
#pragma unroll
      for (int key = 0; key < kCount; ++key) {
#pragma unroll
        for (int i = 0; i < 4; ++i) scores[tile][key][i] = 0;
      }
    }
    const Bf16* query_row =
        queries_ + (row_warp_ * kTiles * 16 + lane_ % 16) * Memory::kKeyStride + lane_ / 16 * 8;
    if constexpr (kCount == 1) {
      const Bf16* key_row = keys + (first * 8 + lane_ % 8) * Memory::kKeyStride + lane_ / 8 * 8;
#pragma unroll
      for (int depth = 0; depth < kSizes.key_dim; depth += 32) {
        uint32_t q[2][4];
        LdMatrix4(q[0], query_row + depth);
        LdMatrix4(q[1], query_row + depth + 16);
        uint32_t k[4];
        LdMatrix4(k, key_row + depth);
        MmaBf16(scores[0][0], q[0], k);
        MmaBf16(scores[0][0], q[1], k + 2);
      }
    } else {
      const Bf16* key_row =
          keys + (first * 8 + lane_ / 16 * 8 + lane_ % 8) * Memory::kKeyStride + lane_ / 8 % 2 * 8;
#pragma unroll
      for (int depth = 0; depth < kSizes.key_dim; depth += 16) {
        uint32_t q[kTiles][4];
#pragma unroll
        for (int tile = 0; tile < kTiles; ++tile) {
          LdMatrix4(q[tile], query_row + tile * 16 * Memory::kKeyStride + depth);
        }
#pragma unroll
        for (int key = 0; key < kCount; key += 2) {
          uint32_t k[4];
          LdMatrix4(k, key_row + key * 8 * Memory::kKeyStride + depth);
#pragma unroll
          for (int tile = 0; tile < kTiles; ++tile) MmaBf16(scores[tile][key], q[tile], k);
#pragma unroll
          for (int tile = 0; tile < kTiles; ++tile) MmaBf16(scores[tile][key + 1], q[tile], k + 2);
        }
      }
    }
  }

  __device__ __forceinline__ void MultiplyKeys(const Bf16* keys, Scores& scores) {
    if constexpr (kColumnWarps == 1) {
      MultiplyKeys<kKeyTiles>(keys, 0, scores);
    } else {
      constexpr int kMine = kKeyTiles / kColumnWarps;
      float mine[1][kMine][4];
      MultiplyKeys<kMine>(keys, column_warp_ * kMine, mine);
      float4* of_rows = exchange_ + row_warp_ * kKeyTiles * 32 + lane_;
#pragma unroll
      for (int key = 0; key < kMine; ++key) {
        const float(&s)[4] = mine[0][key];
        of_rows[(column_warp_ * kMine + key) * 32] = make_float4(s[0], s[1], s[2], s[3]);
      }
      __syncthreads();
#pragma unroll
      for (int key = 0; key < kKeyTiles; ++key) {
        const float4 s = of_rows[key * 32];
        scores[0][key][0] = s.x;
        scores[0][key][1] = s.y;
        scores[0][key][2] = s.z;
        scores[0][key][3] = s.w;
      }
    }
  }

  // f(score, row, key) for each of the thread's scores, keys counted from the block's first.
  // Rows beyond the tile's last are taken for that one.
  template <typename OfRow, typename F>
  __device__ __forceinline__ void ForEachScore(Scores& scores, const OfRow& of_row,
                                               const F& f) const {
#pragma unroll
    for (int tile = 0; tile < kTiles; ++tile) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const auto row = of_row(TileRowOf(p_, work_, min(RowOf(tile, half), work_.num_rows - 1)));
#pragma unroll
        for (int key = 0; key < kKeyTiles; ++key) {
#pragma unroll
          for (int i = 0; i < 2; ++i) {
            f(scores[tile][key][2 * half + i], row, key * 8 + lane_ % 4 * 2 + i);
          }
        }
      }
    }
  }

  __device__ __forceinline__ void AddBias(int begin, Scores& scores) const {
    struct Row {
      const float* table;
      int position;
    };
    const int reach = p_.in.bias_reach;
    ForEachScore(
        scores,
        [&](const TileRow& row) {
          return Row{p_.in.bias + row.head * p_.in.bias_head_stride + kLanes + reach,
                     rows_.first_position + row.token};
        },
        [&](float& score, const Row& row, int key) {
          const int distance = begin + key - row.position;
          score = __fadd_rn(score, row.table[max(-reach, min(reach, distance))]);
        });
  }

  __device__ __forceinline__ void Mask(int begin, Scores& scores) const {
    struct Row {
      int from;
      int to;
    };
    ForEachScore(
        scores,
        [&](const TileRow& row) {
          const int position = rows_.first_position + row.token;
          return Row{FirstKey(position) - begin, EndKey(position) - begin};
        },
        [](float& score, const Row& row, int key) {
          if (key < row.from || key >= row.to) score = NoKeys();
        });
  }

  // Scores become probabilities relative to the maximum so far; the sums so far follow it.
  __device__ __forceinline__ void Softmax(Scores& scores, Sums& sums) const {
    const float scale = p_.scale;
    float keep[kTiles][2];
    bool changes = false;
#pragma unroll
    for (int tile = 0; tile < kTiles; ++tile) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const float before = sums.top[tile][half];
        float top = before;
#pragma unroll
        for (int key = 0; key < kKeyTiles; ++key) {
          top = fmaxf(top, fmaxf(scores[tile][key][2 * half], scores[tile][key][2 * half + 1]));
        }
        top = fmaxf(top, __shfl_xor_sync(kAllOfWarp, top, 1));
        top = fmaxf(top, __shfl_xor_sync(kAllOfWarp, top, 2));
        sums.top[tile][half] = top;
        const float from = top == NoKeys() ? 0.0f : top;
        keep[tile][half] = Exp2((before - from) * scale);
        changes = changes || before != top;
        const float offset = -__fmul_rn(from, scale);
        float sum = 0;
#pragma unroll
        for (int key = 0; key < kKeyTiles; ++key) {
#pragma unroll
          for (int i = 2 * half; i < 2 * half + 2; ++i) {
            scores[tile][key][i] = Exp2(fmaf(scores[tile][key][i], scale, offset));
            sum = __fadd_rn(sum, scores[tile][key][i]);
          }
        }
        sums.sum[tile][half] = fmaf(sums.sum[tile][half], keep[tile][half], sum);
      }
    }
    // Where no maximum grew, all are multiplied by one.
    if (!__any_sync(kAllOfWarp, changes)) return;
#pragma unroll
    for (int tile = 0; tile < kTiles; ++tile) {
#pragma unroll
      for (int column = 0; column < kColumnTiles; ++column) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          sums.out[tile][column][i] = __fmul_rn(sums.out[tile][column][i], keep[tile][i / 2]);
        }
      }
    }
  }

  // The accumulators of two tiles of scores, rounded, are the first operand of the second product.
  __device__ __forceinline__ void MultiplyValues(const Bf16* values, const Scores& probabilities,
                                                 Sums& sums) const {
    const Bf16* row = values + lane_ % 16 * Memory::kValueStride +
                      column_warp_ * Partial::kColumns + lane_ / 16 * 8;
#pragma unroll
    for (int step = 0; step < kKeysOfBlock / 16; ++step) {
      uint32_t a[kTiles][4];
#pragma unroll
      for (int tile = 0; tile < kTiles; ++tile) {
        const float(&first)[4] = probabilities[tile][2 * step];
        const float(&second)[4] = probabilities[tile][2 * step + 1];
        a[tile][0] = PackBf16(first[0], first[1]);
        a[tile][1] = PackBf16(first[2], first[3]);
        a[tile][2] = PackBf16(second[0], second[1]);
        a[tile][3] = PackBf16(second[2], second[3]);
      }
#pragma unroll
      for (int column = 0; column < kColumnTiles; column += 2) {
        uint32_t v[4];
        LdMatrix4Trans(v, row + step * 16 * Memory::kValueStride + column * 8);
#pragma unroll
        for (int tile = 0; tile < kTiles; ++tile) MmaBf16(sums.out[tile][column], a[tile], v);
#pragma unroll
        for (int tile = 0; tile < kTiles; ++tile) {
          MmaBf16(sums.out[tile][column + 1], a[tile], v + 2);
        }
      }
    }
  }

  __device__ __forceinline__ void EndSpan(int span, bool is_first, bool is_last, Sums& sums,
                                          Totals& totals) {
#pragma unroll
    for (int tile = 0; tile < kTiles; ++tile) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        float& sum = sums.sum[tile][half];
        sum = __fadd_rn(sum, __shfl_xor_sync(kAllOfWarp, sum, 1));
        sum = __fadd_rn(sum, __shfl_xor_sync(kAllOfWarp, sum, 2));
      }
    }
    if (work_.is_part != 0) {
      WritePartial(span - work_.first_span, sums);
    } else {
      if (!is_first) FoldTotals(totals, sums);
      if (is_last) {
        Finish(sums);
      } else {
        KeepTotals(sums, totals);
      }
    }
  }

  __device__ __forceinline__ void FoldTotals(const Totals& totals, Sums& sums) const {
#pragma unroll
    for (int tile = 0; tile < kTiles; ++tile) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const FoldScales scales =
            FoldScalesOf(totals.top[tile][half], sums.top[tile][half], p_.scale);
        sums.top[tile][half] = scales.top;
        sums.sum[tile][half] = Fold(totals.sum[tile][half], sums.sum[tile][half], scales);
#pragma unroll
        for (int column = 0; column < kColumnTiles; ++column) {
          float* out = sums.out[tile][column] + 2 * half;
          float2 before;
          if constexpr (kKeepsTotals) {
            before = make_float2(totals.out[tile][column][2 * half],
                                 totals.out[tile][column][2 * half + 1]);
          } else {
            before = Pair(0, tile, column, half);
          }
          out[0] = Fold(before.x, out[0], scales);
          out[1] = Fold(before.y, out[1], scales);
        }
      }
    }
  }

  __device__ __forceinline__ void KeepTotals(const Sums& sums, Totals& totals) const {
#pragma unroll
    for (int tile = 0; tile < kTiles; ++tile) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        totals.top[tile][half] = sums.top[tile][half];
        totals.sum[tile][half] = sums.sum[tile][half];
#pragma unroll
        for (int column = 0; column < kColumnTiles; ++column) {
          const float* out = sums.out[tile][column] + 2 * half;
          if constexpr (kKeepsTotals) {
            totals.out[tile][column][2 * half] = out[0];
            totals.out[tile][column][2 * half + 1] = out[1];
          } else if (row_warp_ * Partial::kWarpRows < work_.num_rows) {
            Pair(0, tile, column, half) = make_float2(out[0], out[1]);
          }
        }
      }
    }
  }

  // Of rows of a warp that has any.
  __device__ __forceinline__ float2& Pair(int span, int tile, int column, int half) const {
    const int warp = min(row_warp_, (work_.num_rows - 1) / Partial::kWarpRows);
    return Partial(p_.in.partials, work_, span)
        .Pair(warp * kColumnWarps + column_warp_, Partial::Slot(tile, column, half), lane_);
  }

  // The span counts from the first of this work.
  __device__ __forceinline__ void WritePartial(int span, const Sums& sums) const {
    const Partial partial(p_.in.partials, work_, span);
#pragma unroll
    for (int tile = 0; tile < kTiles; ++tile) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int row = RowOf(tile, half);
        if (row >= work_.num_rows) continue;
        if (column_warp_ == 0 && lane_ % 4 == 0) {
          partial.StatisticsOf(row) = make_float2(sums.top[tile][half], sums.sum[tile][half]);
        }
#pragma unroll
        for (int column = 0; column < kColumnTiles; ++column) {
          const float* out = sums.out[tile][column] + 2 * half;
          partial.Pair(row_warp_ * kColumnWarps + column_warp_, Partial::Slot(tile, column, half),
                       lane_) = make_float2(out[0], out[1]);
        }
      }
    }
  }

  __device__ __forceinline__ void Finish(const Sums& sums) const {
#pragma unroll
    for (int tile = 0; tile < kTiles; ++tile) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int row = RowOf(tile, half);
        if (row >= work_.num_rows) continue;
        const TileRow place = TileRowOf(p_, work_, row);
        const float* sink = p_.in.sinks == nullptr ? nullptr : p_.in.sinks + place.head;
        const float share = ShareOf(sums.top[tile][half], sums.sum[tile][half], p_.scale, sink);
        const int first_column = column_warp_ * Partial::kColumns + lane_ % 4 * 2;
        WriteRow<kColumnTiles>(
            p_, rows_, place, share, [&](int column) { return first_column + column * 8; },
            [&](int column) {
              const float* out = sums.out[tile][column] + 2 * half;
              return make_float2(out[0], out[1]);
            });
      }
    }
  }

  const AttentionParameters& p_;
  const AttentionWork& work_;
  const QueryRows rows_;
  const int thread_;
  const int lane_;
  const int row_warp_;
  const int column_warp_;
  int first_position_;
  int last_position_;
  int begin_key_;  // keys that some row of the tile sees
  int end_key_;
  Bf16* queries_;
  Bf16* keys_;
  float4* exchange_;  // (row warps, kKeyTiles, 32)
};

}  // namespace convene::kernels::cuda
