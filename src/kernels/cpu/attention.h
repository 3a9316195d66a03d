// Attention over the paged KV cache for any instruction set: an online softmax over spans of
// kSpanTokens keys at absolute positions, so that a query's result does not depend on which queries
// share its tile nor on where a prompt was cut.
//
// Both products are the panel GEMM (a KV block is a packed panel): per span and tile of 48 rows, K
// and V are read once. Operations: 4 * rows * keys * head_dim; bytes: (K + V) per tile.
#pragma once

#include "kernels/cpu/elementwise.h"
#include "kernels/cpu/gemm.h"

namespace convene::kernels::cpu {

inline constexpr float kNoKeys = -3.0e38f;  // maximum of a row that has seen no key

template <class Isa, WeightFormat kFormat>
class AttentionTile {
 public:
  explicit AttentionTile(const Attention& attention)
      : a_(attention),
        num_rows_(attention.num_tokens * attention.num_heads),
        padded_dim_((attention.head_dim + kLanes - 1) / kLanes * kLanes),
        values_{.format = kFormat, .rows = attention.head_dim, .cols = kKvBlockTokens} {
    auto* scratch = reinterpret_cast<float*>(attention.scratch);
    scores_ = scratch;
    probabilities_ = scores_ + kAttentionRows * kSpanTokens;
    span_out_ = probabilities_ + kAttentionRows * kSpanTokens;
    total_out_ = span_out_ + kAttentionRows * padded_dim_;
  }

  void Run() {
    for (int row = 0; row < num_rows_; ++row) total_max_[row] = kNoKeys;
    const int last_position = a_.first_position + a_.num_tokens - 1;
    const int first_key = FirstKey(a_.first_position);
    for (int span = first_key / kSpanTokens; span * kSpanTokens <= last_position; ++span) {
      const int begin = span * kSpanTokens;
      const int from = first_key > begin ? first_key - begin : 0;
      const int left = last_position + 1 - begin;
      const int to = left < kSpanTokens ? left : kSpanTokens;
      first_block_ = from / kKvBlockTokens;
      end_block_ = (to + kKvBlockTokens - 1) / kKvBlockTokens;
      RunSpan(begin);
    }
    StoreRows();
  }

 private:
  int Position(int row) const { return a_.first_position + row / a_.num_heads; }
  int FirstKey(int position) const {
    return a_.window > 0 && position >= a_.window ? position - a_.window + 1 : 0;
  }
  const std::byte* Block(int begin, int block) const {
    return a_.kv + a_.blocks[begin / kKvBlockTokens + block] * a_.kv_block_stride;
  }

  void RunSpan(int begin) {
    for (int block = first_block_; block < end_block_; ++block) Scores(begin, block);
    for (int row = 0; row < num_rows_; ++row) Softmax(begin, row);
    for (int block = first_block_; block < end_block_; ++block) Outputs(begin, block);
    for (int row = 0; row < num_rows_; ++row) MergeRow(row);
  }

  // scores (rows, 64 keys of one block) = q . k
  void Scores(int begin, int block) {
    const void* rows[kTileRows];
    for (int done = 0; done < num_rows_; done += kTileRows) {
      const int count = num_rows_ - done < kTileRows ? num_rows_ - done : kTileRows;
      for (int i = 0; i < count; ++i) {
        rows[i] = a_.queries + (done + i) / a_.num_heads * a_.query_token_stride +
                  (done + i) % a_.num_heads * a_.query_head_stride;
      }
      ChooseTile<Isa, kFormat>(count, kKvBlockTokens / kLanes)(
          {.rows = rows,
           .panel = Block(begin, block),
           .steps = kFormat == WeightFormat::kF32 ? a_.head_dim : (a_.head_dim + 1) / 2,
           .out = scores_ + done * kSpanTokens + block * kKvBlockTokens,
           .out_stride = kSpanTokens});
    }
  }

  // The row's maximum and sum over the keys it sees, and the probabilities of the computed blocks
  // as activations; keys it does not see get exactly zero.
  void Softmax(int begin, int row) {
    float* scores = scores_ + row * kSpanTokens;
    const int first = first_block_ * kKvBlockTokens;
    const int end = end_block_ * kKvBlockTokens;
    const int see_from = FirstKey(Position(row)) - begin;
    const int see_to = Position(row) + 1 - begin;
    const int from = see_from > first ? (see_from < end ? see_from : end) : first;
    const int to = see_to < end ? (see_to > from ? see_to : from) : end;
    for (int key = first; key < from; ++key) scores[key] = kNoKeys;
    for (int key = to; key < end; ++key) scores[key] = kNoKeys;

    auto maximum = Isa::Broadcast(kNoKeys);
    for (int key = first; key < end; key += kLanes) {
      maximum = Isa::Max(maximum, Isa::Load(scores + key));
    }
    const float top = Isa::Maximum(maximum);
    const auto scale = Isa::Broadcast(a_.scale);
    const auto offset = Isa::Broadcast(from < to ? top : 0.0f);
    auto sum = Isa::Zero();
    void* out = probabilities_ + row * kSpanTokens;
    for (int key = first; key < end; key += kLanes) {
      const auto p = Exp<Isa>((Isa::Load(scores + key) - offset) * scale);
      sum = sum + p;
      StoreActivations<Isa>(kFormat, out, key, p, kLanes);
    }
    span_max_[row] = from < to ? top * a_.scale : kNoKeys;
    span_sum_[row] = Isa::Sum(sum);
  }

  // span_out (rows, head_dim) += probabilities (rows, 64 keys) . values
  void Outputs(int begin, int block) {
    const std::byte* values =
        Block(begin, block) +
        PackedMatrix{.format = kFormat, .rows = kKvBlockTokens, .cols = a_.head_dim}.size_bytes();
    const void* rows[kTileRows];
    for (int done = 0; done < num_rows_; done += kTileRows) {
      const int count = num_rows_ - done < kTileRows ? num_rows_ - done : kTileRows;
      for (int i = 0; i < count; ++i) {
        const auto* row =
            reinterpret_cast<const std::byte*>(probabilities_ + (done + i) * kSpanTokens);
        rows[i] = row + int64_t{block} * kKvBlockTokens * (kFormat == WeightFormat::kF32 ? 4 : 2);
      }
      for (int panel = 0; panel < values_.num_panels(); ++panel) {
        ChooseTile<Isa, kFormat>(count, values_.panel_width(panel) / kLanes)(
            {.rows = rows,
             .panel = values + values_.row_bytes() * kPanelRows * panel,
             .steps = kFormat == WeightFormat::kF32 ? kKvBlockTokens : kKvBlockTokens / 2,
             .out = span_out_ + done * padded_dim_ + panel * kPanelRows,
             .out_stride = padded_dim_,
             .accumulate = block != first_block_});
      }
    }
  }

  // Folds the span into what came before it. A span that the row does not see changes nothing.
  void MergeRow(int row) {
    if (span_max_[row] == kNoKeys) return;
    float* total = total_out_ + row * padded_dim_;
    const float* span = span_out_ + row * padded_dim_;
    if (total_max_[row] == kNoKeys) {
      for (int i = 0; i < padded_dim_; i += kLanes) Isa::Store(total + i, Isa::Load(span + i));
      total_max_[row] = span_max_[row];
      total_sum_[row] = span_sum_[row];
      return;
    }
    const float top = total_max_[row] > span_max_[row] ? total_max_[row] : span_max_[row];
    const auto keep = Exp<Isa>(Isa::Broadcast(total_max_[row] - top));
    const auto add = Exp<Isa>(Isa::Broadcast(span_max_[row] - top));
    for (int i = 0; i < padded_dim_; i += kLanes) {
      Isa::Store(total + i,
                 Isa::MultiplyAdd(Isa::Load(span + i), add, Isa::Load(total + i) * keep));
    }
    float sums[kLanes];
    Isa::Store(sums, Isa::MultiplyAdd(Isa::Broadcast(span_sum_[row]), add,
                                      Isa::Broadcast(total_sum_[row]) * keep));
    total_sum_[row] = sums[0];
    total_max_[row] = top;
  }

  void StoreRows() {
    for (int row = 0; row < num_rows_; ++row) {
      std::byte* out = a_.out + row / a_.num_heads * a_.out_token_stride +
                       row % a_.num_heads * a_.out_head_stride;
      const float* total = total_out_ + row * padded_dim_;
      const auto scale = Isa::Broadcast(1.0f / total_sum_[row]);
      ForEachVector(a_.head_dim, [&](int i, int count) {
        StoreActivations<Isa>(kFormat, out, i, Isa::Load(total + i) * scale, count);
      });
    }
  }

  const Attention& a_;
  const int num_rows_;
  const int padded_dim_;
  const PackedMatrix values_;
  float* scores_;         // (kAttentionRows, kSpanTokens)
  float* probabilities_;  // (kAttentionRows, kSpanTokens) activations
  float* span_out_;       // (kAttentionRows, padded_dim)
  float* total_out_;      // (kAttentionRows, padded_dim)
  int first_block_ = 0;   // of the current span, computed for all rows
  int end_block_ = 0;
  float span_max_[kAttentionRows];  // scaled
  float span_sum_[kAttentionRows];
  float total_max_[kAttentionRows];
  float total_sum_[kAttentionRows];
};

template <class Isa>
void Attend(const Attention& attention) {
  if (attention.format == WeightFormat::kF32) {
    AttentionTile<Isa, WeightFormat::kF32>(attention).Run();
  } else {
    AttentionTile<Isa, WeightFormat::kBf16>(attention).Run();
  }
}

}  // namespace convene::kernels::cpu
