#include "runtime/activations.h"

#include <algorithm>

namespace convene::runtime {
namespace {

// The widest of each buffer over all layers.
struct Widths {
  int64_t hidden = 0;
  int64_t query_dim = 0;
  int64_t qkv_dim = 0;
  int64_t padded_queries = 0;
  int64_t router = 0;
  int64_t slots_per_token = 1;
  int64_t intermediate = 0;
  int64_t attention_scratch = 0;
  int64_t span_row = 0;
};

Widths WidestOf(const model::ModelSpec& spec) {
  Widths widths{.hidden = spec.hidden_size};
  for (const model::LayerSpec& layer : spec.layers) {
    const model::AttentionSpec& attention = layer.attention;
    const int64_t query_dim = attention.query_dim();
    widths.query_dim = std::max(widths.query_dim, query_dim);
    widths.qkv_dim = std::max(widths.qkv_dim, query_dim + 2 * attention.kv_dim());
    widths.padded_queries =
        std::max<int64_t>(widths.padded_queries,
                          attention.num_heads * int64_t{kernels::PaddedHead(attention.head_dim)});
    widths.attention_scratch =
        std::max(widths.attention_scratch,
                 static_cast<int64_t>(kernels::AttentionScratchBytes(attention.head_dim)));
    widths.span_row =
        std::max<int64_t>(widths.span_row, 4 * kernels::SpanRowFloats(attention.head_dim));
    widths.intermediate = std::max<int64_t>(widths.intermediate, layer.dense_intermediate_size);
    if (!layer.moe) continue;
    const model::MoeSpec& moe = *layer.moe;
    widths.router = std::max<int64_t>(widths.router, moe.num_experts + 1);
    widths.slots_per_token = std::max<int64_t>(widths.slots_per_token, moe.top_k);
    widths.intermediate = std::max<int64_t>(
        widths.intermediate, std::max(moe.intermediate_size, moe.shared_intermediate_size));
  }
  return widths;
}

// Gives each buffer its place; with `base` null only the size is found.
uint64_t Place(const model::ModelSpec& spec, kernels::ActivationFormat format, int max_step_tokens,
               int num_threads, std::byte* base, Activations* out) {
  using kernels::ActivationFormat;
  const Widths widths = WidestOf(spec);
  uint64_t used = 0;
  const auto place_bytes = [&](int64_t rows, int64_t row_bytes) {
    constexpr int64_t kLine = 64;
    RowBuffer buffer{.stride_bytes = (row_bytes + kLine - 1) / kLine * kLine};
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
  const int64_t tokens = max_step_tokens;
  const int64_t slots = tokens * widths.slots_per_token;
  const int64_t head_rows = std::min<int64_t>(tokens, Activations::kHeadRows);
  out->format = format;
  out->wide_format = wide;
  out->hidden = place(tokens, widths.hidden, kFloat);
  out->normed = place(tokens, widths.hidden, format);
  out->normed_float = place(tokens, widths.hidden, kFloat);
  out->expert_in = place(slots, widths.hidden, format);
  out->qkv = place(tokens, widths.qkv_dim, kFloat);
  out->queries = place(tokens, widths.padded_queries, query);
  out->attention_out = place(tokens, widths.query_dim, format);
  out->attention_wide = int8 ? place(tokens, widths.query_dim, wide) : out->attention_out;
  out->router_logits = place(tokens, widths.router, kFloat);
  out->intermediate = place(slots, widths.intermediate, format);
  out->intermediate_wide = int8 ? place(slots, widths.intermediate, wide) : out->intermediate;
  out->slot_out = place(slots, widths.hidden, kFloat);
  out->shared_out = place(tokens, widths.hidden, kFloat);
  out->logits = place(head_rows, spec.vocab_size, kFloat);
  out->attention_scratch = place_bytes(num_threads, widths.attention_scratch);
  out->gemm_scratch = place_bytes(num_threads, kernels::kGemmScratchBytes);
  out->span_partials = place_bytes(Activations::kSpanPartials, widths.span_row);
  return used;
}

}  // namespace

uint64_t Activations::SizeBytes(const model::ModelSpec& spec, kernels::ActivationFormat format,
                                int max_step_tokens, int num_threads) {
  Activations unplaced;
  return Place(spec, format, max_step_tokens, num_threads, nullptr, &unplaced);
}

Result<Activations> Activations::Create(const model::ModelSpec& spec,
                                        kernels::ActivationFormat format, int max_step_tokens,
                                        int num_threads) {
  Result<hardware::HugeBuffer> memory = hardware::HugeBuffer::Allocate(
      SizeBytes(spec, format, max_step_tokens, num_threads), "the activations");
  if (!memory) return memory.error();
  Activations activations;
  activations.memory = std::move(*memory);
  Place(spec, format, max_step_tokens, num_threads, activations.memory.data(), &activations);
  return activations;
}

}  // namespace convene::runtime
