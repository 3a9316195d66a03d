// Attention over the paged KV cache for any instruction set: an online softmax over spans of
// kSpanTokens keys at absolute positions, so that a query's result does not depend on which queries
// share its tile nor on where a prompt was cut.
//
// Both products are the panel GEMM (a KV block is a packed panel): K and V of a span are read once
// for up to kAttentionRows rows, and stay in the second-level cache for groups of these, whose
// scores then stay there too. Operations: 4 * rows * keys * head_dim; bytes: (K + V) per call.
#pragma once

#include <type_traits>

#include "kernels/cpu/blocks.h"
#include "kernels/cpu/elementwise.h"
#include "kernels/cpu/transpose_keys.h"

namespace convene::kernels::cpu {

inline constexpr float kNoKeys = -3.0e38f;  // maximum of a row that has seen no key

template <class Isa, KvFormat kFormat>
class AttentionTile {
  static constexpr bool kFloat = kFormat == KvFormat::kF32;
  static constexpr DotKind kKind = kFloat ? DotKind::kF32 : DotKind::kBf16;
  static constexpr int kElements = ElementsPerStep(kKind);
  static constexpr int kElementBytes = kFloat ? 4 : 2;  // of queries and probabilities

 public:
  explicit AttentionTile(const Attention& attention)
      : a_(attention),
        num_rows_(attention.num_tokens * attention.num_heads),
        padded_dim_((attention.value_dim + kLanes - 1) / kLanes * kLanes) {
    auto* scratch = reinterpret_cast<float*>(attention.scratch);
    scores_ = scratch;
    probabilities_ = scores_ + kAttentionRows * kSpanTokens;
    span_out_ = probabilities_ + kAttentionRows * kSpanTokens;
    total_out_ = span_out_ + kAttentionRows * padded_dim_;
    unpacked_ = reinterpret_cast<std::byte*>(total_out_ + kAttentionRows * padded_dim_);
    transposed_ = unpacked_ + KeyBlockBytes(KvFormat::kBf16, attention.key_dim) +
                  ValueBlockBytes(KvFormat::kBf16, attention.value_dim);
    if (UsesMatrixTiles()) GatherQueries();
  }

  void Run() {
    for (int row = 0; row < num_rows_; ++row) total_max_[row] = kNoKeys;
    const int end = EndSpan(a_);
    for (int span = FirstSpan(a_); span < end; ++span) {
      RunSpan(span);
      for (int row = 0; row < num_rows_; ++row) {
        MergeRow(row, span_max_[row], span_sum_[row], span_out_ + row * padded_dim_);
      }
    }
    StoreRows();
  }

  // One span by itself, to where MergeSpans finds it.
  void RunAlone(int span, float* partial) {
    RunSpan(span);
    for (int row = 0; row < num_rows_; ++row, partial += SpanRowFloats(a_.value_dim)) {
      partial[0] = span_max_[row];
      partial[1] = span_sum_[row];
      const float* from = span_out_ + row * padded_dim_;
      for (int i = 0; i < padded_dim_; i += kLanes) {
        Isa::Store(partial + kLanes + i, Isa::Load(from + i));
      }
    }
  }

  void MergeSpans(const float* partial) {
    for (int row = 0; row < num_rows_; ++row) total_max_[row] = kNoKeys;
    const int end = EndSpan(a_);
    for (int span = FirstSpan(a_); span < end; ++span) {
      for (int row = 0; row < num_rows_; ++row, partial += SpanRowFloats(a_.value_dim)) {
        MergeRow(row, partial[0], partial[1], partial + kLanes);
      }
    }
    StoreRows();
  }

 private:
  // A property of the model's heads, not of the step: the two ways differ in their last bits.
  bool UsesMatrixTiles() const { return Isa::template kMatrixTiles<kKind> && a_.key_dim % 32 == 0; }

  // Matrix tiles want rows at equal distances.
  void GatherQueries() {
    queries_ = transposed_ + ValueBlockBytes(KvFormat::kF32, a_.value_dim);
    query_bytes_ = int64_t{a_.key_dim} * kElementBytes;
    for (int row = 0; row < num_rows_; ++row) {
      __builtin_memcpy(queries_ + row * query_bytes_, QueryAt(row),
                       static_cast<size_t>(query_bytes_));
    }
  }
  const std::byte* QueryAt(int row) const {
    return a_.queries + row / a_.num_heads * a_.query_token_stride +
           row % a_.num_heads * a_.query_head_stride;
  }

  // Rows [first, first + count) of the call, which are computed together.
  struct Group {
    int first = 0;
    int count = 0;
    int end() const { return first + count; }
  };

  // Where a block's keys or values are made anew for every group, one group is all rows.
  int GroupRows() const {
    if (kFormat == KvFormat::kInt8 || a_.value_in_key >= 0) return kAttentionRows;
    if constexpr (Isa::template kMatrixTiles<kKind>) return Isa::kBlockRows;
    return 8 * kTileRows;
  }

  void Configure(int num_rows) {
    if (num_rows != rows_of_tiles_) Isa::BeginMatrixTiles(num_rows);
    rows_of_tiles_ = num_rows;
  }

  // The group's rows against a panel of keys or values on the matrix unit.
  void MultiplyOnMatrixTiles(const Group& group, Block block) {
    if constexpr (Isa::template kMatrixTiles<kKind>) {
      const std::byte* rows = block.rows;
      std::byte* sums = block.sums;
      const int64_t lines = num_rows_ <= Isa::kBlockRows ? block.steps * block.width / 16 : 0;
      for (int done = 0; done < group.count; done += Isa::kBlockRows) {
        const int left = group.count - done;
        block.rows = rows + done * block.row_stride;
        block.sums = sums + done * block.sum_stride;
        block.num_rows = left < Isa::kBlockRows ? left : Isa::kBlockRows;
        Configure(block.num_rows);
        Isa::template RunMatrixTiles<kKind>(block, block.panel + kStreamAhead, lines);
      }
    }
  }

  // A single tile of rows only streams keys and values: they are fetched so many bytes ahead.
  static constexpr int kStreamAhead = 2048;
  int StreamLines() const { return num_rows_ <= kTileRows && kFormat != KvFormat::kInt8 ? 16 : 0; }

  int Position(int row) const { return a_.first_position + row / a_.num_heads; }
  int FirstKey(int position) const {
    return a_.window > 0 && position >= a_.window ? position - a_.window + 1 : 0;
  }
  std::byte* KvBlock(int begin, int block) const {
    return a_.kv_blocks[a_.blocks[begin / kKvBlockTokens + block]] + a_.kv_offset;
  }

  void RunSpan(int span) {
    const int begin = span * kSpanTokens;
    const int group_rows = GroupRows();
    for (int first = 0; first < num_rows_; first += group_rows) {
      const int left = num_rows_ - first;
      RunGroup(begin, {first, left < group_rows ? left : group_rows});
    }
    if constexpr (Isa::template kMatrixTiles<kKind>) {
      if (rows_of_tiles_ > 0) Isa::EndMatrixTiles();
      rows_of_tiles_ = 0;
    }
  }

  void RunGroup(int begin, const Group& group) {
    const int first_key = FirstKey(Position(group.first));
    const int from = first_key > begin ? first_key - begin : 0;
    const int end_key = a_.num_keys > 0 ? a_.num_keys : Position(group.end() - 1) + 1;
    const int left = end_key - begin;
    const int to = left < kSpanTokens ? left : kSpanTokens;
    first_block_ = from / kKvBlockTokens;
    end_block_ = to > 0 ? (to + kKvBlockTokens - 1) / kKvBlockTokens : 0;
    for (int block = first_block_; block < end_block_; ++block) Scores(begin, group, block);
    for (int row = group.first; row < group.end(); ++row) Softmax(begin, row, row - group.first);
    if (!OutputsOfAllBlocks(begin, group)) {
      for (int block = first_block_; block < end_block_; ++block) Outputs(begin, group, block);
    }
  }

  // Keys or values of a block as the tiles want them: bytes become bf16, exactly.
  const std::byte* Unpacked(const std::byte* stored, int64_t elements) {
    if constexpr (kFormat != KvFormat::kInt8) return stored;
    const auto* from = reinterpret_cast<const int8_t*>(stored);
    auto* to = reinterpret_cast<tensor::Bf16*>(unpacked_);
    for (int64_t i = 0; i < elements; i += kLanes) Isa::StoreBf16(to + i, Isa::LoadInt8(from + i));
    return unpacked_;
  }

  const std::byte* Keys(int begin, int block) {
    const int64_t padded = (a_.key_dim + kElements - 1) / kElements * kElements;
    return Unpacked(KvBlock(begin, block), padded * kPanelRows);
  }
  const std::byte* Values(int begin, int block) {
    if (a_.value_in_key < 0) {
      return Unpacked(KvBlock(begin, block) + KeyBlockBytes(kFormat, a_.key_dim),
                      int64_t{padded_dim_} * kKvBlockTokens);
    }
    const int64_t first_step = a_.value_in_key / kElements;
    const std::byte* keys = Keys(begin, block) + first_step * kPanelRows * 4;
    TransposeKeys<Isa, kFloat>(keys, a_.value_dim, transposed_);
    return transposed_;
  }

  // scores (rows of the group, 64 keys of one block) = q . k
  void Scores(int begin, const Group& group, int block) {
    const int steps = (a_.key_dim + kElements - 1) / kElements;
    const std::byte* keys = Keys(begin, block);
    if (UsesMatrixTiles()) {
      MultiplyOnMatrixTiles(group, {.rows = queries_ + group.first * query_bytes_,
                                    .row_stride = query_bytes_,
                                    .panel = keys,
                                    .width = kPanelRows,
                                    .steps = steps,
                                    .sums = reinterpret_cast<std::byte*>(ScoresOf(0, block)),
                                    .sum_stride = 4 * kSpanTokens});
      return ScaleScores(begin, group, block);
    }
    const void* rows[kTileRows];
    for (int done = 0; done < group.count; done += kTileRows) {
      const int count = group.count - done < kTileRows ? group.count - done : kTileRows;
      for (int i = 0; i < count; ++i) rows[i] = QueryAt(group.first + done + i);
      RunTiles<Isa, kKind>({.rows = rows,
                            .panel = keys,
                            .panel_stride = 4 * kPanelRows,
                            .steps = steps,
                            .out = reinterpret_cast<std::byte*>(ScoresOf(done, block)),
                            .out_stride = 4 * kSpanTokens,
                            .prefetch = keys + kStreamAhead},
                           count, kKvBlockTokens / kLanes, StreamLines());
    }
    ScaleScores(begin, group, block);
  }

  void ScaleScores(int begin, const Group& group, int block) {
    if constexpr (kFormat == KvFormat::kInt8) {
      const float* scales = KeyScales(KvBlock(begin, block), a_.key_dim);
      for (int row = 0; row < group.count; ++row) {
        float* scores = ScoresOf(row, block);
        for (int key = 0; key < kKvBlockTokens; key += kLanes) {
          Isa::Store(scores + key, Isa::Load(scores + key) * Isa::Load(scales + key));
        }
      }
    }
  }
  // Of the group's row `row`.
  float* ScoresOf(int row, int block) {
    return scores_ + row * kSpanTokens + block * kKvBlockTokens;
  }
  const float* ValueScalesOf(int begin, int key) const {
    std::byte* block = KvBlock(begin, key / kKvBlockTokens);
    const int slot = key % kKvBlockTokens;
    if (a_.value_in_key >= 0) return KeyScales(block, a_.key_dim) + slot;
    return ValueScales(block + KeyBlockBytes(kFormat, a_.key_dim), a_.value_dim) + slot;
  }

  // The row's maximum and sum over the keys it sees, and the probabilities of the computed blocks
  // as activations; keys it does not see get exactly zero. `index`: of the row in its group.
  void Softmax(int begin, int row, int index) {
    float* scores = scores_ + index * kSpanTokens;
    const int first = first_block_ * kKvBlockTokens;
    const int end = end_block_ * kKvBlockTokens;
    const int see_from = FirstKey(Position(row)) - begin;
    const int see_to = (a_.num_keys > 0 ? a_.num_keys : Position(row) + 1) - begin;
    const int from = see_from > first ? (see_from < end ? see_from : end) : first;
    const int to = see_to < end ? (see_to > from ? see_to : from) : end;
    for (int key = first; key < from; ++key) scores[key] = kNoKeys;
    for (int key = to; key < end; ++key) scores[key] = kNoKeys;

    if (a_.bias.table != nullptr) AddBias(begin, row, scores);
    auto maximum = Isa::Broadcast(kNoKeys);
    for (int key = first; key < end; key += kLanes) {
      maximum = Isa::Max(maximum, Isa::Load(scores + key));
    }
    const float top = Isa::Maximum(maximum);
    constexpr float kLog2E = 1.44269504088896341f;
    const auto scale = Isa::Broadcast(a_.scale * kLog2E);
    const auto offset = Isa::Broadcast(from < to ? top : 0.0f);
    auto sum = Isa::Zero();
    void* out = probabilities_ + index * kSpanTokens;
    for (int key = first; key < end; key += kLanes) {
      const auto p = Exp2OfNegative<Isa>((Isa::Load(scores + key) - offset) * scale);
      sum = sum + p;
      auto weight = p;
      if constexpr (kFormat == KvFormat::kInt8) {
        weight = p * Isa::Load(ValueScalesOf(begin, key));
      }
      StoreActivations<Isa>(QueryFormat(kFormat), out, key, weight, kLanes);
    }
    span_max_[row] = from < to ? top * a_.scale : kNoKeys;
    span_sum_[row] = Isa::Sum(sum);
  }

  // Keys that the row does not see keep a score that no other reaches.
  void AddBias(int begin, int row, float* scores) {
    const DistanceBias& bias = a_.bias;
    const float* table = bias.table + row % a_.num_heads * bias.head_stride + kLanes + bias.reach;
    const int end = end_block_ * kKvBlockTokens;
    for (int key = first_block_ * kKvBlockTokens; key < end; key += kLanes) {
      const int distance = begin + key - Position(row);
      const int before = -bias.reach - kLanes;
      const int at = distance < before ? before : distance > bias.reach ? bias.reach : distance;
      Isa::Store(scores + key, Isa::Load(scores + key) + Isa::Load(table + at));
    }
  }

  // On the matrix unit, where values are multiplied as they are stored: all blocks of the span at
  // once, so that sums stay in tiles. The same sums in the same order. False: do it block by block.
  bool OutputsOfAllBlocks(int begin, const Group& group) {
    if constexpr (!Isa::template kMatrixTiles<kKind> || kFormat != KvFormat::kBf16) {
      return false;
    } else {
      const int num_blocks = end_block_ - first_block_;
      // A call of few rows streams its values from memory: Outputs fetches them ahead.
      const bool streams = num_rows_ <= Isa::kBlockRows;
      if (!UsesMatrixTiles() || a_.value_in_key >= 0 || streams || num_blocks <= 0) return false;
      constexpr int kBlockSteps = kKvBlockTokens / kElements;
      constexpr int kShift = __builtin_ctz(kBlockSteps / Isa::kTileSteps);
      const auto* probabilities = reinterpret_cast<const std::byte*>(probabilities_);
      for (int dim = 0; dim < padded_dim_; dim += kPanelRows) {
        const std::byte* panels[kSpanTokens / kKvBlockTokens];
        for (int block = 0; block < num_blocks; ++block) {
          panels[block] =
              Values(begin, first_block_ + block) + int64_t{dim} * kKvBlockTokens * kElementBytes;
        }
        const int left = padded_dim_ - dim;
        float* sums = span_out_ + int64_t{group.first} * padded_dim_ + dim;
        Configure(group.count);
        Isa::template RunPieces<kKind>(
            {.rows = probabilities + int64_t{first_block_} * kKvBlockTokens * kElementBytes,
             .row_stride = 4 * kSpanTokens,
             .num_rows = group.count,
             .width = left < kPanelRows ? left : kPanelRows,
             .steps = int64_t{num_blocks} * kBlockSteps,
             .sums = reinterpret_cast<std::byte*>(sums),
             .sum_stride = 4 * padded_dim_},
            panels, kShift);
      }
      return true;
    }
  }

  // span_out (rows of the group, value_dim) += probabilities (rows, 64 keys) . values
  void Outputs(int begin, const Group& group, int block) {
    const std::byte* values = Values(begin, block);
    float* sums = span_out_ + int64_t{group.first} * padded_dim_;
    if (UsesMatrixTiles()) {
      for (int dim = 0; dim < padded_dim_; dim += kPanelRows) {
        const int left = padded_dim_ - dim;
        MultiplyOnMatrixTiles(group,
                              {.rows = reinterpret_cast<const std::byte*>(probabilities_) +
                                       int64_t{block} * kKvBlockTokens * kElementBytes,
                               .row_stride = 4 * kSpanTokens,
                               .panel = values + int64_t{dim} * kKvBlockTokens * kElementBytes,
                               .width = left < kPanelRows ? left : kPanelRows,
                               .steps = kKvBlockTokens / kElements,
                               .sums = reinterpret_cast<std::byte*>(sums + dim),
                               .sum_stride = 4 * padded_dim_,
                               .accumulate = block != first_block_});
      }
      return;
    }
    const void* rows[kTileRows];
    for (int done = 0; done < group.count; done += kTileRows) {
      const int count = group.count - done < kTileRows ? group.count - done : kTileRows;
      for (int i = 0; i < count; ++i) {
        const auto* row =
            reinterpret_cast<const std::byte*>(probabilities_ + (done + i) * kSpanTokens);
        rows[i] = row + int64_t{block} * kKvBlockTokens * kElementBytes;
      }
      for (int dim = 0; dim < padded_dim_; dim += kPanelRows) {
        const int left = padded_dim_ - dim;
        const int width = left < kPanelRows ? left : kPanelRows;
        RunTiles<Isa, kKind>(
            {.rows = rows,
             .panel = values + int64_t{dim} * kKvBlockTokens * kElementBytes,
             .panel_stride = 4 * width,
             .steps = kKvBlockTokens / kElements,
             .out = reinterpret_cast<std::byte*>(sums + done * padded_dim_ + dim),
             .out_stride = 4 * padded_dim_,
             .accumulate = block != first_block_,
             .prefetch = values + int64_t{dim} * kKvBlockTokens * kElementBytes + kStreamAhead},
            count, width / kLanes, StreamLines());
      }
    }
  }

  // Folds a span into what came before it. A span that the row does not see changes nothing.
  void MergeRow(int row, float span_max, float span_sum, const float* span) {
    if (span_max == kNoKeys) return;
    float* total = total_out_ + row * padded_dim_;
    if (total_max_[row] == kNoKeys) {
      for (int i = 0; i < padded_dim_; i += kLanes) Isa::Store(total + i, Isa::Load(span + i));
      total_max_[row] = span_max;
      total_sum_[row] = span_sum;
      return;
    }
    const float top = total_max_[row] > span_max ? total_max_[row] : span_max;
    const auto keep = Exp<Isa>(Isa::Broadcast(total_max_[row] - top));
    const auto add = Exp<Isa>(Isa::Broadcast(span_max - top));
    for (int i = 0; i < padded_dim_; i += kLanes) {
      Isa::Store(total + i,
                 Isa::MultiplyAdd(Isa::Load(span + i), add, Isa::Load(total + i) * keep));
    }
    float sums[kLanes];
    Isa::Store(sums, Isa::MultiplyAdd(Isa::Broadcast(span_sum), add,
                                      Isa::Broadcast(total_sum_[row]) * keep));
    total_sum_[row] = sums[0];
    total_max_[row] = top;
  }

  // What a row's outputs are multiplied with: one over the sum, a sink's share in it.
  float Share(int row) const {
    if (a_.sinks == nullptr) return 1.0f / total_sum_[row];
    const float sink = a_.sinks[row % a_.num_heads];
    const float top = total_max_[row] > sink ? total_max_[row] : sink;
    const auto keep = Exp<Isa>(Isa::Broadcast(total_max_[row] - top));
    const auto sunk = Exp<Isa>(Isa::Broadcast(sink - top));
    float shares[kLanes];
    Isa::Store(shares, keep / Isa::MultiplyAdd(Isa::Broadcast(total_sum_[row]), keep, sunk));
    return shares[0];
  }

  void StoreRows() {
    for (int row = 0; row < num_rows_; ++row) {
      std::byte* out = a_.out + row / a_.num_heads * a_.out_token_stride +
                       row % a_.num_heads * a_.out_head_stride;
      const float* total = total_out_ + row * padded_dim_;
      const auto scale = Isa::Broadcast(Share(row));
      ForEachVector(a_.value_dim, [&](int i, int count) {
        StoreActivations<Isa>(a_.out_format, out, i, Isa::Load(total + i) * scale, count);
      });
    }
  }

  const Attention& a_;
  const int num_rows_;
  const int padded_dim_;
  float* scores_;                 // (kAttentionRows, kSpanTokens), of a group's rows in front
  float* probabilities_;          // (kAttentionRows, kSpanTokens) activations, likewise
  float* span_out_;               // (kAttentionRows, padded_dim)
  float* total_out_;              // (kAttentionRows, padded_dim)
  std::byte* queries_ = nullptr;  // (num_rows, key_dim), for matrix tiles
  int64_t query_bytes_ = 0;
  std::byte* unpacked_;    // bf16 of a block's keys or values (kInt8)
  std::byte* transposed_;  // the values of a block of keys
  int rows_of_tiles_ = 0;  // for which the matrix unit is configured; 0: not at all
  int first_block_ = 0;    // of the current span, computed for the rows of a group
  int end_block_ = 0;
  float span_max_[kAttentionRows];  // scaled
  float span_sum_[kAttentionRows];
  float total_max_[kAttentionRows];
  float total_sum_[kAttentionRows];
};

template <class Isa, typename F>
void WithAttentionTile(const Attention& attention, F&& f) {
  switch (attention.format) {
    case KvFormat::kF32:
      return f(AttentionTile<Isa, KvFormat::kF32>(attention));
    case KvFormat::kBf16:
      return f(AttentionTile<Isa, KvFormat::kBf16>(attention));
    case KvFormat::kInt8:
      return f(AttentionTile<Isa, KvFormat::kInt8>(attention));
  }
}

template <class Isa>
void Attend(const Attention& attention) {
  WithAttentionTile<Isa>(attention, [](auto&& tile) { tile.Run(); });
}

template <class Isa>
void AttendSpan(const Attention& attention, int span, float* partial) {
  WithAttentionTile<Isa>(attention, [&](auto&& tile) { tile.RunAlone(span, partial); });
}

template <class Isa>
void MergeSpans(const Attention& attention, const float* partial) {
  WithAttentionTile<Isa>(attention, [&](auto&& tile) { tile.MergeSpans(partial); });
}

}  // namespace convene::kernels::cpu
