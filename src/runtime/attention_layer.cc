#include "runtime/attention_layer.h"

#include <algorithm>
#include <cstring>

namespace convene::runtime {
namespace {

kernels::QkNormKind KindOf(model::QkNorm norm) {
  switch (norm) {
    case model::QkNorm::kNone:
      return kernels::QkNormKind::kNone;
    case model::QkNorm::kPerHead:
      return kernels::QkNormKind::kPerHead;
    case model::QkNorm::kWholeProjection:
      return kernels::QkNormKind::kWholeProjection;
  }
  return kernels::QkNormKind::kNone;
}

}  // namespace

int AttentionLayer::Run(int layer_idx, const StepRows& rows, bool only_wanted) {
  const weights::LayerWeights& weights = context_.weights.layers[layer_idx];
  const model::AttentionSpec& shape = context_.spec().layers[layer_idx].attention;
  Activations& buffers = context_.activations;
  context_.Normalize(weights.attention_norm, rows.num_rows(), /*also_float=*/false);
  context_.Multiply(weights.qkv, buffers.normed, rows.num_rows(), kernels::Epilogue::kStore,
                    buffers.qkv, weights.qkv_bias);
  PrepareQkv(layer_idx, rows);

  const int num_out = only_wanted ? static_cast<int>(rows.wanted().size()) : rows.num_rows();
  if (num_out == 0) return 0;
  rows.AttentionUnits(shape, only_wanted, &units_);
  Attend(layer_idx, rows);
  if (only_wanted) {
    for (int i = 0; i < num_out; ++i) {
      std::memmove(buffers.hidden.row(i), buffers.hidden.row(rows.wanted()[i]),
                   buffers.hidden.stride_bytes);
    }
  }
  context_.Narrow(buffers.attention_wide, num_out, shape.query_dim(), buffers.attention_out);
  context_.Multiply(weights.output, buffers.attention_out, num_out, kernels::Epilogue::kAdd,
                    buffers.hidden, weights.output_bias, {.scale = context_.spec().residual_scale});
  return num_out;
}

void AttentionLayer::PrepareQkv(int layer_idx, const StepRows& rows) {
  const weights::LayerWeights& weights = context_.weights.layers[layer_idx];
  const model::ModelSpec& spec = context_.spec();
  const model::AttentionSpec& attention = spec.layers[layer_idx].attention;
  Activations& buffers = context_.activations;
  const kernels::QkvShape shape{.format = cache_.format(),
                                .num_heads = attention.num_heads,
                                .num_kv_heads = attention.num_kv_heads,
                                .head_dim = attention.head_dim,
                                .rotary_dim = spec.rope.rotary_dim,
                                .norm = KindOf(attention.qk_norm),
                                .epsilon = spec.norm.epsilon,
                                .query_norm = weights.query_norm.data(),
                                .key_norm = weights.key_norm.data(),
                                .clip = attention.clip_qkv.value_or(0.0f)};
  // Every block that this step starts to fill is cleared before anything is written to it.
  context_.pool.ParallelFor(
      rows.num_rows(),
      [&](int64_t row, int) {
        const bool starts_block = rows.position(row) % kKvBlockTokens == 0;
        if (starts_block) cache_.ClearValues(layer_idx, rows.block(row));
      },
      kKvBlockTokens);
  context_.pool.ParallelFor(
      rows.num_rows(),
      [&](int64_t row, int) {
        context_.kernels.prepare_qkv(shape,
                                     {.qkv = buffers.qkv.floats(row),
                                      .cosine = rows.cosine(row),
                                      .sine = rows.sine(row),
                                      .queries = buffers.queries.row(row),
                                      .kv_block = cache_.Block(layer_idx, 0, rows.block(row)),
                                      .kv_head_stride = cache_.HeadStride(layer_idx),
                                      .slot = rows.position(row) % kKvBlockTokens});
      },
      4);
}

kernels::Attention AttentionLayer::Describe(int layer_idx, const StepRows& rows,
                                            const AttentionUnit& unit, int thread_idx) const {
  const model::AttentionSpec& shape = context_.spec().layers[layer_idx].attention;
  const Activations& buffers = context_.activations;
  const int64_t query_stride =
      kernels::PaddedHead(shape.head_dim) * ElementBytes(kernels::QueryFormat(cache_.format()));
  const int64_t out_stride = shape.head_dim * ElementBytes(buffers.wide_format);
  const SequenceStep& sequence = rows.step()[unit.sequence_idx];
  // Rows of a sequence are consecutive and in the order of their positions.
  const int first_row = rows.first_row(unit.sequence_idx) + unit.first_token;
  return {.format = cache_.format(),
          .out_format = buffers.wide_format,
          .head_dim = shape.head_dim,
          .scale = shape.scale,
          .window = shape.window,
          .num_tokens = unit.num_tokens,
          .num_heads = unit.num_heads,
          .first_position = sequence.first_position + unit.first_token,
          .queries = buffers.queries.row(first_row) + unit.first_head * query_stride,
          .query_token_stride = buffers.queries.stride_bytes,
          .query_head_stride = query_stride,
          .kv = cache_.Block(layer_idx, unit.kv_head, 0),
          .blocks = sequence.blocks.data(),
          .kv_block_stride = cache_.BlockStride(layer_idx),
          .out = buffers.attention_wide.row(unit.first_out_row) + unit.first_head * out_stride,
          .out_token_stride = buffers.attention_wide.stride_bytes,
          .out_head_stride = out_stride,
          .scratch = buffers.attention_scratch.row(thread_idx)};
}

bool AttentionLayer::AttendInSpans(int layer_idx, const StepRows& rows) {
  // Enough units keep all threads busy; few of them with long contexts do not.
  if (std::ssize(units_) >= int64_t{kUnitsPerThread} * context_.pool.size()) return false;
  spans_.clear();
  int num_rows = 0;
  for (int unit_idx = 0; unit_idx < std::ssize(units_); ++unit_idx) {
    const kernels::Attention attention = Describe(layer_idx, rows, units_[unit_idx], 0);
    for (int span = FirstSpan(attention); span < EndSpan(attention); ++span) {
      spans_.push_back({unit_idx, span, num_rows});
      num_rows += attention.num_tokens * attention.num_heads;
    }
  }
  if (spans_.size() == units_.size() || num_rows > Activations::kSpanPartials) return false;

  const RowBuffer& partials = context_.activations.span_partials;
  const int row_floats =
      kernels::SpanRowFloats(context_.spec().layers[layer_idx].attention.head_dim);
  const auto partial = [&](const Span& span) {
    return reinterpret_cast<float*>(partials.data) + int64_t{span.first_row} * row_floats;
  };
  context_.pool.ParallelFor(std::ssize(spans_), [&](int64_t index, int thread_idx) {
    const Span& span = spans_[index];
    context_.kernels.attend_span(Describe(layer_idx, rows, units_[span.unit_idx], thread_idx),
                                 span.span, partial(span));
  });
  context_.pool.ParallelFor(std::ssize(spans_), [&](int64_t index, int thread_idx) {
    const Span& span = spans_[index];
    if (index > 0 && spans_[index - 1].unit_idx == span.unit_idx) return;
    context_.kernels.merge_spans(Describe(layer_idx, rows, units_[span.unit_idx], thread_idx),
                                 partial(span));
  });
  return true;
}

void AttentionLayer::Attend(int layer_idx, const StepRows& rows) {
  const model::AttentionSpec& shape = context_.spec().layers[layer_idx].attention;
  if (!AttendInSpans(layer_idx, rows)) {
    context_.pool.ParallelFor(std::ssize(units_), [&](int64_t index, int thread_idx) {
      context_.kernels.attend(Describe(layer_idx, rows, units_[index], thread_idx));
    });
  }

  // For the statistics: keys seen by each query, and keys read per sequence.
  const auto seen = [&](int64_t position) {
    return shape.window > 0 ? std::min<int64_t>(position + 1, shape.window) : position + 1;
  };
  const int64_t kv_bytes_per_token = cache_.TokenBytes(layer_idx);
  for (const AttentionUnit& unit : units_) {
    const SequenceStep& sequence = rows.step()[unit.sequence_idx];
    const int64_t first = sequence.first_position + unit.first_token;
    for (int64_t position = first; position < first + unit.num_tokens; ++position) {
      const auto keys = static_cast<double>(seen(position));
      context_.statistics.flops += 4.0 * unit.num_heads * shape.head_dim * keys;
    }
  }
  for (const SequenceStep& sequence : rows.step()) {
    const int64_t last = sequence.first_position + std::ssize(sequence.tokens) - 1;
    const int64_t keys = std::min<int64_t>(last + 1, seen(last) + std::ssize(sequence.tokens) - 1);
    context_.statistics.kv_bytes += keys * kv_bytes_per_token;
  }
}

}  // namespace convene::runtime
