#include "device/cpu/attention_layer.h"

#include <algorithm>
#include <cstring>

#include "device/cpu/store_kv.h"

namespace convene::device {

Status AttentionLayer::Project(const Layer& layer, const Frame& frame) {
  const auto weights = context_.weights.LeaseLayer(layer.id(), weights::LayerPart::kProjection);
  if (!weights) return weights.error();
  const Activations& buffers = ActivationsOf(frame);
  context_.Multiply((*weights)->qkv, buffers.normed, frame.rows.num_rows(),
                    kernels::Epilogue::kStore, buffers.qkv, (*weights)->qkv_bias);
  return {};
}

int AttentionLayer::Attend(const Layer& layer, const weights::LayerWeights& weights,
                           const Frame& frame, bool only_wanted, bool is_normed) {
  if (layer.spec.attention.latent) {
    latent_.Run(layer, weights, frame, only_wanted);
  } else {
    PrepareQkv(layer, weights, frame, is_normed);
    AttendSequences(layer, weights, frame, {0, static_cast<int>(frame.rows.step().size())},
                    only_wanted);
  }
  return Narrow(layer, frame, only_wanted);
}

int AttentionLayer::Narrow(const Layer& layer, const Frame& frame, bool only_wanted) {
  const Activations& buffers = ActivationsOf(frame);
  const int num_out =
      only_wanted ? static_cast<int>(frame.rows.wanted().size()) : frame.rows.num_rows();
  context_.Narrow(buffers.attention_wide, num_out, layer.spec.attention.output_dim(),
                  buffers.attention_out);
  return num_out;
}

std::array<AttentionLayer::Piece, 2> AttentionLayer::PiecesOf(AttentionRows kind,
                                                              const Layer& layer,
                                                              const Activations& buffers) const {
  const model::AttentionSpec& shape = layer.spec.attention;
  if (kind == AttentionRows::kAttended) {
    return {{{buffers.attention_wide, 0,
              shape.output_dim() * ElementBytes(context_.workspace.wide_format)},
             {}}};
  }
  constexpr int64_t kFloat = sizeof(float);
  const int64_t query_bytes = int64_t{shape.num_heads} * kernels::PaddedHead(shape.head_dim) *
                              ElementBytes(kernels::QueryFormat(cache_.format()));
  // Queries were taken out of qkv, keys and values are still there.
  return {
      {{context_.workspace.queries, 0, query_bytes},
       {buffers.qkv, shape.query_dim() * kFloat, (shape.kv_dim() + shape.value_width()) * kFloat}}};
}

int64_t AttentionLayer::RowBytes(AttentionRows kind, const Layer& layer) const {
  int64_t size_bytes = 0;
  for (const Piece& piece : PiecesOf(kind, layer, Activations())) size_bytes += piece.size_bytes;
  return size_bytes;
}

void AttentionLayer::Pack(AttentionRows kind, const Layer& layer, const Frame& frame,
                          std::byte* to) const {
  const std::array<Piece, 2> pieces = PiecesOf(kind, layer, ActivationsOf(frame));
  for (int row = 0; row < frame.rows.num_rows(); ++row) {
    for (const Piece& piece : pieces) {
      if (piece.size_bytes == 0) continue;
      std::memcpy(to, piece.rows.row(row) + piece.offset, static_cast<size_t>(piece.size_bytes));
      to += piece.size_bytes;
    }
  }
}

void AttentionLayer::Unpack(AttentionRows kind, const Layer& layer, const std::byte* from,
                            const Frame& frame) const {
  const std::array<Piece, 2> pieces = PiecesOf(kind, layer, ActivationsOf(frame));
  for (int row = 0; row < frame.rows.num_rows(); ++row) {
    for (const Piece& piece : pieces) {
      if (piece.size_bytes == 0) continue;
      std::memcpy(piece.rows.row(row) + piece.offset, from, static_cast<size_t>(piece.size_bytes));
      from += piece.size_bytes;
    }
  }
}

void AttentionLayer::PrepareQkv(const Layer& layer, const weights::LayerWeights& weights,
                                const Frame& frame, bool is_normed) {
  const model::ModelSpec& spec = context_.spec();
  const model::AttentionSpec& attention = layer.spec.attention;
  const Activations& buffers = ActivationsOf(frame);
  const RowBuffer& queries = context_.workspace.queries;
  const kernels::QkvShape shape{.format = cache_.format(),
                                .num_heads = attention.num_heads,
                                .num_kv_heads = attention.num_kv_heads,
                                .head_dim = attention.head_dim,
                                .value_dim = attention.value_dim,
                                .rotary_dim = spec.rope.rotary_dim,
                                .norm = is_normed ? model::QkNorm::kNone : attention.qk_norm,
                                .epsilon = spec.norm.epsilon,
                                .query_norm = weights.query_norm.data(),
                                .key_norm = weights.key_norm.data(),
                                .clip = attention.clip_qkv.value_or(0.0f)};
  context_.pool.ParallelFor(
      frame.rows.num_rows(),
      [&](int64_t row, int) {
        context_.kernels.prepare_qkv(shape, {.qkv = buffers.qkv.floats(row),
                                             .cosine = CpuFrameOf(frame).angles.cosine(row),
                                             .sine = CpuFrameOf(frame).angles.sine(row),
                                             .queries = queries.row(row)});
      },
      4);
}

void AttentionLayer::DivideIntoUnits(const StepRows& rows, const model::AttentionSpec& attention,
                                     Stream::SequenceRange sequences, bool only_wanted) {
  units_.clear();
  const int group = attention.num_heads / attention.num_kv_heads;
  const int heads_per_unit = std::min(group, kernels::kAttentionRows);
  const int tokens_per_unit = std::max(1, kernels::kAttentionRows / heads_per_unit);
  int out_row = sequences.begin < sequences.end ? rows.first_row(sequences.begin) : 0;
  if (only_wanted) {
    const auto wanted = rows.wanted();
    out_row = static_cast<int>(std::ranges::lower_bound(wanted, out_row) - wanted.begin());
  }
  for (int sequence_idx = sequences.begin; sequence_idx < sequences.end; ++sequence_idx) {
    const SequenceStep& sequence = rows.step()[sequence_idx];
    const int num_tokens = static_cast<int>(sequence.tokens.size());
    const int begin = only_wanted ? std::min(sequence.first_logits_token, num_tokens) : 0;
    for (int kv_head = 0; kv_head < attention.num_kv_heads; ++kv_head) {
      for (int head = 0; head < group; head += heads_per_unit) {
        for (int token = begin; token < num_tokens; token += tokens_per_unit) {
          units_.push_back({.sequence_idx = sequence_idx,
                            .kv_head = kv_head,
                            .first_head = kv_head * group + head,
                            .num_heads = std::min(heads_per_unit, group - head),
                            .first_token = token,
                            .num_tokens = std::min(tokens_per_unit, num_tokens - token),
                            .first_out_row = out_row + token - begin});
        }
      }
    }
    out_row += num_tokens - begin;
  }
}

kernels::Attention AttentionLayer::Describe(const Layer& layer,
                                            const weights::LayerWeights& weights,
                                            const Frame& frame, const AttentionUnit& unit) const {
  const model::AttentionSpec& shape = layer.spec.attention;
  const Activations& buffers = ActivationsOf(frame);
  const RowBuffer& queries = context_.workspace.queries;
  const int64_t query_stride =
      kernels::PaddedHead(shape.head_dim) * ElementBytes(kernels::QueryFormat(cache_.format()));
  const int64_t out_stride = shape.value_dim * ElementBytes(context_.workspace.wide_format);
  const SequenceStep& sequence = frame.rows.step()[unit.sequence_idx];
  kernels::DistanceBias bias = biases_.Of(layer);
  if (bias.table != nullptr) bias.table += unit.first_head * bias.head_stride;
  // Rows of a sequence are consecutive and in the order of their positions.
  const int first_row = frame.rows.first_row(unit.sequence_idx) + unit.first_token;
  return {.format = cache_.format(),
          .out_format = context_.workspace.wide_format,
          .key_dim = shape.head_dim,
          .value_dim = shape.value_dim,
          .scale = shape.scale,
          .window = shape.window,
          .num_keys = shape.causal ? 0 : static_cast<int>(sequence.tokens.size()),
          .sinks = shape.sinks ? &weights.sinks[unit.first_head] : nullptr,
          .bias = bias,
          .num_tokens = unit.num_tokens,
          .num_heads = unit.num_heads,
          .first_position = sequence.first_position + unit.first_token,
          .queries = queries.row(first_row) + unit.first_head * query_stride,
          .query_token_stride = queries.stride_bytes,
          .query_head_stride = query_stride,
          .kv_blocks = cache_.blocks(layer.cache_layer),
          .blocks = sequence.blocks.data(),
          .kv_offset = cache_.HeadOffset(layer.cache_layer, unit.kv_head),
          .out = buffers.attention_wide.row(unit.first_out_row) + unit.first_head * out_stride,
          .out_token_stride = buffers.attention_wide.stride_bytes,
          .out_head_stride = out_stride};
}

void AttentionLayer::AttendSequences(const Layer& layer, const weights::LayerWeights& weights,
                                     const Frame& frame, Stream::SequenceRange sequences,
                                     bool only_wanted) {
  const model::AttentionSpec& shape = layer.spec.attention;
  const StepRows& rows = frame.rows;
  if (sequences.begin == sequences.end) return;
  const int first = rows.first_row(sequences.begin);
  const int end =
      sequences.end < std::ssize(rows.step()) ? rows.first_row(sequences.end) : rows.num_rows();
  StoreKv(context_, cache_, layer.cache_layer, rows,
          {.rows = ActivationsOf(frame).qkv,
           .first_key = shape.num_heads * shape.head_dim,
           .num_heads = shape.num_kv_heads,
           .key_dim = shape.head_dim,
           .value_dim = shape.value_dim},
          {first, end - first});
  DivideIntoUnits(rows, shape, sequences, only_wanted);
  if (units_.empty()) return;
  calls_.clear();
  for (const AttentionUnit& unit : units_) calls_.push_back(Describe(layer, weights, frame, unit));
  attender_.Run(calls_);

  // For the statistics: keys read per sequence.
  const auto seen = [&](int64_t position) {
    return shape.window > 0 ? std::min<int64_t>(position + 1, shape.window) : position + 1;
  };
  const auto step = rows.step().subspan(static_cast<size_t>(sequences.begin),
                                        static_cast<size_t>(sequences.end - sequences.begin));
  for (const SequenceStep& sequence : step) {
    const int64_t last = sequence.first_position + std::ssize(sequence.tokens) - 1;
    const int64_t keys = std::min<int64_t>(last + 1, seen(last) + std::ssize(sequence.tokens) - 1);
    context_.statistics.kv_bytes += keys * cache_.TokenBytes(layer.cache_layer);
  }
}

}  // namespace convene::device
