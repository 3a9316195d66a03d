#include "device/cpu/workspace.h"

#include <algorithm>
#include <utility>

#include "device/stream.h"
#include "kernels/kernel_set.h"

namespace convene::device {
namespace {

// The widest of each buffer over all layers.
struct Widths {
  int64_t padded_queries = 0;
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

int64_t NumBlocks(int context) {
  return (int64_t{context} + kernels::kKvBlockTokens - 1) / kernels::kKvBlockTokens;
}

void WidenForLatent(const model::AttentionSpec& attention, kernels::KvFormat compute, int context,
                    Widths& widths) {
  const model::LatentSpec& latent = *attention.latent;
  const int64_t heads = attention.num_heads;
  const int64_t at_once = Workspace::ExpandedHeads(attention, compute, context);
  Widen(widths.query_rank, latent.query_rank);
  if (latent.query_rank > 0) Widen(widths.query_dim, attention.query_dim());
  Widen(widths.head_rows, heads * Workspace::kAbsorbedRows);
  Widen(widths.head_in, std::max(latent.nope_dim, latent.kv_rank));
  Widen(widths.head_out, std::max<int64_t>(Padded(attention.value_dim), latent.kv_rank));
  Widen(widths.absorbed_queries, heads * kernels::PaddedHead(latent.key_dim()));
  Widen(widths.key_dim, latent.key_dim());
  Widen(widths.kv_rank, latent.kv_rank);
  Widen(widths.expanded_keys, at_once * Padded(latent.nope_dim));
  Widen(widths.expanded_values, at_once * Padded(attention.value_dim));
  Widen(widths.expanded_blocks, at_once * NumBlocks(context));
  Widen(widths.expanded_block_bytes, Workspace::ExpandedBlockBytes(attention, compute));
  Widen(widths.attention_scratch, kernels::AttentionScratchBytes(latent.key_dim(), latent.kv_rank));
  Widen(widths.span_row, 4 * kernels::SpanRowFloats(latent.kv_rank));
}

void WidenForAttention(const model::AttentionSpec& attention, Widths& widths) {
  Widen(widths.padded_queries,
        attention.num_heads * int64_t{kernels::PaddedHead(attention.head_dim)});
  Widen(widths.attention_scratch,
        kernels::AttentionScratchBytes(attention.head_dim, attention.value_dim));
  Widen(widths.span_row, 4 * kernels::SpanRowFloats(attention.value_dim));
}

Widths WidestOf(const model::ModelSpec& spec, kernels::KvFormat compute, int context) {
  Widths widths;
  for (const auto* stack : {&spec.encoder_layers, &spec.layers}) {
    for (const model::LayerSpec& layer : *stack) {
      WidenForAttention(layer.attention, widths);
      if (layer.cross_attention) WidenForAttention(*layer.cross_attention, widths);
      if (layer.attention.latent) WidenForLatent(layer.attention, compute, context, widths);
      Widen(widths.intermediate, layer.dense_intermediate_size);
      if (!layer.moe) continue;
      Widen(widths.intermediate, layer.moe->intermediate_size);
      Widen(widths.intermediate, layer.moe->shared_intermediate_size);
    }
  }
  return widths;
}

// Gives each buffer its place; with `base` null only the size is found.
uint64_t Place(const model::ModelSpec& spec, kernels::ActivationFormat format,
               const StepShape& shape, int num_threads, std::byte* base, Workspace* out) {
  using kernels::ActivationFormat;
  constexpr ActivationFormat kFloat = ActivationFormat::kF32;
  const auto compute = format == kFloat ? kernels::KvFormat::kF32 : kernels::KvFormat::kBf16;
  const ActivationFormat query = format == kFloat ? kFloat : ActivationFormat::kBf16;
  const ActivationFormat wide = WideFormat(format);
  const Widths widths = WidestOf(spec, compute, shape.context);
  const int64_t hidden = spec.hidden_size;
  const int64_t head_rows = std::min(shape.head_rows, Stream::kHeadRows);
  const FrameShape& largest = shape.frames.front();
  RowPlacer place(base);
  out->format = format;
  out->wide_format = wide;
  out->expert_in = place.Rows(largest.slots, hidden, format);
  out->queries = place.Rows(largest.tokens, widths.padded_queries, query);
  out->intermediate = place.Rows(largest.slots, widths.intermediate, format);
  out->intermediate_wide =
      wide == format ? out->intermediate : place.Rows(largest.slots, widths.intermediate, wide);
  out->wanted = place.Rows(head_rows, hidden, format);
  out->logits = place.Rows(head_rows, spec.vocab_size, kFloat);
  out->attention_scratch = place.Bytes(num_threads, widths.attention_scratch);
  out->gemm_scratch = place.Bytes(num_threads, kernels::kGemmScratchBytes);
  out->span_partials = place.Bytes(Workspace::kSpanPartials, widths.span_row);
  out->unpacked = place.Bytes(num_threads, shape.num_ranks * hidden * int64_t{sizeof(float)});
  if (widths.key_dim == 0) return place.used_bytes();
  constexpr int64_t kExpanded = Workspace::kExpandedRows;
  out->query_latent = place.Rows(largest.tokens, widths.query_rank, format);
  out->wide_queries = place.Rows(largest.tokens, widths.query_dim, kFloat);
  out->head_in = place.Rows(widths.head_rows, widths.head_in, format);
  out->head_out = place.Rows(widths.head_rows, widths.head_out, kFloat);
  out->absorbed_queries = place.Rows(Workspace::kAbsorbedRows, widths.absorbed_queries, query);
  out->cached_keys = place.Rows(kExpanded, widths.key_dim, kFloat);
  out->cached_latents = place.Rows(kExpanded, widths.kv_rank, format);
  out->expanded_keys = place.Rows(kExpanded, widths.expanded_keys, kFloat);
  out->expanded_values = place.Rows(kExpanded, widths.expanded_values, kFloat);
  out->expanded_blocks = place.Bytes(widths.expanded_blocks, widths.expanded_block_bytes);
  return place.used_bytes();
}

}  // namespace

int64_t Workspace::ExpandedBlockBytes(const model::AttentionSpec& attention,
                                      kernels::KvFormat compute) {
  return kernels::KeyBlockBytes(compute, attention.head_dim) +
         kernels::ValueBlockBytes(compute, attention.value_dim);
}

int Workspace::ExpandedHeads(const model::AttentionSpec& attention, kernels::KvFormat compute,
                             int context) {
  constexpr int64_t kMostBytes = int64_t{64} << 20;
  const int64_t head_bytes = NumBlocks(context) * ExpandedBlockBytes(attention, compute);
  const int64_t fitting = std::max<int64_t>(1, kMostBytes / std::max<int64_t>(1, head_bytes));
  return static_cast<int>(std::min<int64_t>(attention.num_heads, fitting));
}

uint64_t Workspace::SizeBytes(const model::ModelSpec& spec, kernels::ActivationFormat format,
                              const StepShape& shape, int num_threads) {
  Workspace unplaced;
  return Place(spec, format, shape, num_threads, nullptr, &unplaced);
}

Result<Workspace> Workspace::Create(const model::ModelSpec& spec, kernels::ActivationFormat format,
                                    const StepShape& shape, int num_threads,
                                    memory::Ledger& ledger) {
  Result<memory::Reservation> memory =
      ledger.Allocate(memory::Use::kWorking, SizeBytes(spec, format, shape, num_threads));
  if (!memory) return memory.error();
  Workspace workspace;
  workspace.memory = std::move(*memory);
  Place(spec, format, shape, num_threads, workspace.memory.data(), &workspace);
  return workspace;
}

}  // namespace convene::device
