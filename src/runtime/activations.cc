#include "runtime/activations.h"

#include <algorithm>

namespace convene::runtime {
namespace {

// The widest of each buffer over all layers.
struct Widths {
  int64_t hidden = 0;
  int64_t output_dim = 0;
  int64_t qkv_dim = 0;
  int64_t padded_queries = 0;
  int64_t router = 0;
  int64_t slots_per_token = 1;
  int64_t intermediate = 0;
  int64_t attention_scratch = 0;
  int64_t span_row = 0;
  // Of latent attention:
  int64_t query_rank = 0;
  int64_t query_dim = 0;  // where queries have a latent
  int64_t head_rows = 0;
  int64_t head_in = 0;
  int64_t head_out = 0;
  int64_t absorbed_queries = 0;
  int64_t key_dim = 0;
  int64_t kv_rank = 0;
  int64_t expanded_keys = 0;
  int64_t expanded_values = 0;
  int64_t expanded_blocks = 0;
  int64_t expanded_block_bytes = 0;
};

template <typename T, typename U>
void Widen(T& width, U wanted) {
  width = std::max(width, static_cast<T>(wanted));
}

int64_t Padded(int rows) {
  return (int64_t{rows} + kernels::kPanelRows - 1) / kernels::kPanelRows * kernels::kPanelRows;
}

// Rows begin at cache lines.
int64_t AlignedRow(int64_t row_bytes) {
  constexpr int64_t kLine = 64;
  return (row_bytes + kLine - 1) / kLine * kLine;
}

int64_t NumBlocks(int context) {
  return (int64_t{context} + kernels::kKvBlockTokens - 1) / kernels::kKvBlockTokens;
}

void WidenForLatent(const model::AttentionSpec& attention, kernels::KvFormat compute, int context,
                    Widths& widths) {
  const model::LatentSpec& latent = *attention.latent;
  const int64_t heads = attention.num_heads;
  const int64_t at_once = Activations::ExpandedHeads(attention, compute, context);
  Widen(widths.query_rank, latent.query_rank);
  if (latent.query_rank > 0) Widen(widths.query_dim, attention.query_dim());
  Widen(widths.head_rows, heads * Activations::kAbsorbedRows);
  Widen(widths.head_in, std::max(latent.nope_dim, latent.kv_rank));
  Widen(widths.head_out, std::max<int64_t>(Padded(attention.value_dim), latent.kv_rank));
  Widen(widths.absorbed_queries, heads * kernels::PaddedHead(latent.key_dim()));
  Widen(widths.key_dim, latent.key_dim());
  Widen(widths.kv_rank, latent.kv_rank);
  Widen(widths.expanded_keys, at_once * Padded(latent.nope_dim));
  Widen(widths.expanded_values, at_once * Padded(attention.value_dim));
  Widen(widths.expanded_blocks, at_once * NumBlocks(context));
  Widen(widths.expanded_block_bytes, Activations::ExpandedBlockBytes(attention, compute));
  Widen(widths.attention_scratch, kernels::AttentionScratchBytes(latent.key_dim(), latent.kv_rank));
  Widen(widths.span_row, 4 * kernels::SpanRowFloats(latent.kv_rank));
}

// Elements that one product with the residual stream gives.
int64_t ProjectedElements(const model::AttentionSpec& attention) {
  if (!attention.latent) {
    return int64_t{attention.query_dim()} + attention.kv_dim() + attention.value_width();
  }
  const model::LatentSpec& latent = *attention.latent;
  return (latent.query_rank > 0 ? latent.query_rank : attention.query_dim()) + latent.key_dim();
}

void WidenForAttention(const model::AttentionSpec& attention, Widths& widths) {
  Widen(widths.output_dim, attention.output_dim());
  Widen(widths.qkv_dim, ProjectedElements(attention));
  Widen(widths.padded_queries,
        attention.num_heads * int64_t{kernels::PaddedHead(attention.head_dim)});
  Widen(widths.attention_scratch,
        kernels::AttentionScratchBytes(attention.head_dim, attention.value_dim));
  Widen(widths.span_row, 4 * kernels::SpanRowFloats(attention.value_dim));
}

Widths WidestOf(const model::ModelSpec& spec, kernels::KvFormat compute, int context,
                int expert_shares) {
  Widths widths{.hidden = spec.hidden_size};
  for (const auto* stack : {&spec.encoder_layers, &spec.layers}) {
    for (const model::LayerSpec& layer : *stack) {
      WidenForAttention(layer.attention, widths);
      if (layer.cross_attention) WidenForAttention(*layer.cross_attention, widths);
      if (layer.attention.latent) WidenForLatent(layer.attention, compute, context, widths);
      Widen(widths.intermediate, layer.dense_intermediate_size);
      if (!layer.moe) continue;
      Widen(widths.router, layer.moe->num_experts + 1);
      const int most_experts = (layer.moe->num_experts + expert_shares - 1) / expert_shares;
      Widen(widths.slots_per_token, std::min(layer.moe->top_k, most_experts));
      Widen(widths.intermediate, layer.moe->intermediate_size);
      Widen(widths.intermediate, layer.moe->shared_intermediate_size);
    }
  }
  return widths;
}

// Gives each buffer its place; with `base` null only the size is found.
uint64_t Place(const model::ModelSpec& spec, kernels::ActivationFormat format,
               const Activations::Shape& shape, std::byte* base, Activations* out) {
  using kernels::ActivationFormat;
  const auto compute =
      format == ActivationFormat::kF32 ? kernels::KvFormat::kF32 : kernels::KvFormat::kBf16;
  const Widths widths = WidestOf(spec, compute, shape.context, shape.expert_shares);
  uint64_t used = 0;
  const auto place_bytes = [&](int64_t rows, int64_t row_bytes) {
    RowBuffer buffer{.stride_bytes = AlignedRow(row_bytes)};
    if (base != nullptr) buffer.data = base + used;
    used += static_cast<uint64_t>(rows * buffer.stride_bytes);
    return buffer;
  };
  const auto place = [&](int64_t rows, int64_t width, ActivationFormat row_format) {
    return place_bytes(rows, kernels::ActivationRowBytes(row_format, static_cast<int>(width)));
  };
  constexpr ActivationFormat kFloat = ActivationFormat::kF32;
  const bool int8 = format == ActivationFormat::kInt8;
  const ActivationFormat wide = int8 ? kFloat : format;
  const ActivationFormat query = format == kFloat ? kFloat : ActivationFormat::kBf16;
  const int64_t tokens = shape.max_step_tokens;
  const int64_t slots = std::max<int64_t>(tokens, shape.max_expert_rows * widths.slots_per_token);
  out->num_slots = static_cast<int>(slots);
  const int64_t head_rows = std::min<int64_t>(shape.max_expert_rows, Activations::kHeadRows);
  out->format = format;
  out->wide_format = wide;
  out->hidden = place(tokens, widths.hidden, kFloat);
  out->normed = place(tokens, widths.hidden, format);
  out->normed_float = place(tokens, widths.hidden, kFloat);
  out->expert_in = place(slots, widths.hidden, format);
  out->qkv = place(tokens, widths.qkv_dim, kFloat);
  out->queries = place(tokens, widths.padded_queries, query);
  out->attention_out = place(tokens, widths.output_dim, format);
  out->attention_wide = int8 ? place(tokens, widths.output_dim, wide) : out->attention_out;
  out->router_logits = place(tokens, widths.router, kFloat);
  out->intermediate = place(slots, widths.intermediate, format);
  out->intermediate_wide = int8 ? place(slots, widths.intermediate, wide) : out->intermediate;
  out->slot_out = place(slots, widths.hidden, kFloat);
  if (shape.is_partial) out->partial_out = place(tokens, widths.hidden, kFloat);
  out->shared_out = place(tokens, widths.hidden, kFloat);
  out->wanted = place(head_rows, widths.hidden, format);
  out->logits = place(head_rows, spec.vocab_size, kFloat);
  out->attention_scratch = place_bytes(shape.num_threads, widths.attention_scratch);
  out->gemm_scratch = place_bytes(shape.num_threads, kernels::kGemmScratchBytes);
  out->span_partials = place_bytes(Activations::kSpanPartials, widths.span_row);
  const RowBuffer exchange = place_bytes(1, shape.exchange_bytes);
  if (base != nullptr) out->exchange = {exchange.data, static_cast<size_t>(shape.exchange_bytes)};
  if (widths.key_dim == 0) return used;
  constexpr int64_t kExpanded = Activations::kExpandedRows;
  out->query_latent = place(tokens, widths.query_rank, format);
  out->wide_queries = place(tokens, widths.query_dim, kFloat);
  out->head_in = place(widths.head_rows, widths.head_in, format);
  out->head_out = place(widths.head_rows, widths.head_out, kFloat);
  out->absorbed_queries = place(Activations::kAbsorbedRows, widths.absorbed_queries, query);
  out->cached_keys = place(kExpanded, widths.key_dim, kFloat);
  out->cached_latents = place(kExpanded, widths.kv_rank, format);
  out->expanded_keys = place(kExpanded, widths.expanded_keys, kFloat);
  out->expanded_values = place(kExpanded, widths.expanded_values, kFloat);
  out->expanded_blocks = place_bytes(widths.expanded_blocks, widths.expanded_block_bytes);
  return used;
}

}  // namespace

int64_t Activations::ExpandedBlockBytes(const model::AttentionSpec& attention,
                                        kernels::KvFormat compute) {
  return kernels::KeyBlockBytes(compute, attention.head_dim) +
         kernels::ValueBlockBytes(compute, attention.value_dim);
}

int Activations::ExpandedHeads(const model::AttentionSpec& attention, kernels::KvFormat compute,
                               int context) {
  constexpr int64_t kMostBytes = int64_t{64} << 20;
  const int64_t head_bytes = NumBlocks(context) * ExpandedBlockBytes(attention, compute);
  const int64_t fitting = std::max<int64_t>(1, kMostBytes / std::max<int64_t>(1, head_bytes));
  return static_cast<int>(std::min<int64_t>(attention.num_heads, fitting));
}

int64_t Activations::RowStride(kernels::ActivationFormat format, int width) {
  return AlignedRow(kernels::ActivationRowBytes(format, width));
}

uint64_t Activations::SizeBytes(const model::ModelSpec& spec, kernels::ActivationFormat format,
                                const Shape& shape) {
  Activations unplaced;
  return Place(spec, format, shape, nullptr, &unplaced);
}

Result<Activations> Activations::Create(const model::ModelSpec& spec,
                                        kernels::ActivationFormat format, const Shape& shape) {
  Result<hardware::HugeBuffer> memory =
      hardware::HugeBuffer::Allocate(SizeBytes(spec, format, shape), "the activations");
  if (!memory) return memory.error();
  Activations activations;
  activations.memory = std::move(*memory);
  Place(spec, format, shape, activations.memory.data(), &activations);
  return activations;
}

}  // namespace convene::runtime
