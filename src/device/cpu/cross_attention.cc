#include "device/cpu/cross_attention.h"

#include <algorithm>

#include "device/cpu/store_kv.h"

namespace convene::device {

using kernels::Epilogue;

Status CrossAttention::Store(const Layer& layer, const Frame& frame) {
  const auto weights = context_.weights.LeaseLayer(layer.id(), weights::LayerPart::kCrossKeys);
  if (!weights) return weights.error();
  const model::AttentionSpec& shape = *layer.spec.cross_attention;
  const Activations& buffers = ActivationsOf(frame);
  context_.Multiply((*weights)->cross->kv, buffers.normed, frame.rows.num_rows(), Epilogue::kStore,
                    buffers.qkv);
  StoreKv(context_, cache_, layer.cache_layer, frame.rows,
          {.rows = buffers.qkv,
           .num_heads = shape.num_kv_heads,
           .key_dim = shape.head_dim,
           .value_dim = shape.value_dim});
  return {};
}

int CrossAttention::Run(const Layer& layer, const weights::LayerWeights& weights,
                        const Frame& frame, bool only_wanted) {
  const model::AttentionSpec& shape = *layer.spec.cross_attention;
  const Activations& buffers = ActivationsOf(frame);
  const int num_rows =
      only_wanted ? static_cast<int>(frame.rows.wanted().size()) : frame.rows.num_rows();
  if (num_rows == 0) return 0;
  context_.Multiply(weights.cross->query, buffers.normed, num_rows, Epilogue::kStore, buffers.qkv);
  const RowBuffer& queries = context_.workspace.queries;
  const kernels::QkvShape query_shape{
      .format = cache_.format(), .num_heads = shape.num_heads, .head_dim = shape.head_dim};
  context_.pool.ParallelFor(
      num_rows,
      [&](int64_t row, int) {
        context_.kernels.prepare_qkv(query_shape,
                                     {.qkv = buffers.qkv.floats(row), .queries = queries.row(row)});
      },
      4);
  Attend(layer, frame, only_wanted);
  context_.Narrow(buffers.attention_wide, num_rows, shape.output_dim(), buffers.attention_out);
  return num_rows;
}

void CrossAttention::Attend(const Layer& layer, const Frame& frame, bool only_wanted) {
  const model::AttentionSpec& shape = *layer.spec.cross_attention;
  const Activations& buffers = ActivationsOf(frame);
  const RowBuffer& queries = context_.workspace.queries;
  const int group = shape.num_heads / shape.num_kv_heads;
  const int64_t query_stride =
      kernels::PaddedHead(shape.head_dim) * ElementBytes(kernels::QueryFormat(cache_.format()));
  const int64_t out_stride = shape.value_dim * ElementBytes(context_.workspace.wide_format);
  calls_.clear();
  int first_row = 0;
  for (const SequenceStep& sequence : frame.rows.step()) {
    const auto num_tokens = static_cast<int>(sequence.tokens.size());
    const int num_rows =
        only_wanted ? std::max(0, num_tokens - sequence.first_logits_token) : num_tokens;
    for (int head = 0; head < shape.num_heads; ++head) {
      for (int row = 0; row < num_rows; row += kernels::kAttentionRows) {
        calls_.push_back({.format = cache_.format(),
                          .out_format = context_.workspace.wide_format,
                          .key_dim = shape.head_dim,
                          .value_dim = shape.value_dim,
                          .scale = shape.scale,
                          .num_keys = sequence.encoder_length,
                          .num_tokens = std::min(kernels::kAttentionRows, num_rows - row),
                          .num_heads = 1,
                          .queries = queries.row(first_row + row) + head * query_stride,
                          .query_token_stride = queries.stride_bytes,
                          .query_head_stride = query_stride,
                          .kv_blocks = cache_.blocks(layer.cache_layer),
                          .blocks = sequence.encoder_blocks.data(),
                          .kv_offset = cache_.HeadOffset(layer.cache_layer, head / group),
                          .out = buffers.attention_wide.row(first_row + row) + head * out_stride,
                          .out_token_stride = buffers.attention_wide.stride_bytes,
                          .out_head_stride = out_stride});
      }
    }
    first_row += num_rows;
    context_.statistics.kv_bytes +=
        int64_t{sequence.encoder_length} * cache_.TokenBytes(layer.cache_layer);
  }
  attender_.Run(calls_);
}

}  // namespace convene::device
