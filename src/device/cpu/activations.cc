#include "device/cpu/activations.h"

#include <algorithm>
#include <utility>

namespace convene::device {
namespace {

// The widest of each buffer over all layers.
struct RowWidths {
  int64_t output_dim = 0;
  int64_t qkv_dim = 0;
  int64_t router = 0;
};

template <typename T, typename U>
void WidenRow(T& width, U wanted) {
  width = std::max(width, static_cast<T>(wanted));
}

// Elements that one product with the residual stream gives.
int64_t ProjectedElements(const model::AttentionSpec& attention) {
  if (!attention.latent) {
    return int64_t{attention.query_dim()} + attention.kv_dim() + attention.value_width();
  }
  const model::LatentSpec& latent = *attention.latent;
  return (latent.query_rank > 0 ? latent.query_rank : attention.query_dim()) + latent.key_dim();
}

RowWidths WidestRowsOf(const model::ModelSpec& spec) {
  RowWidths widths;
  const auto widen_for = [&](const model::AttentionSpec& attention) {
    WidenRow(widths.output_dim, attention.output_dim());
    WidenRow(widths.qkv_dim, ProjectedElements(attention));
  };
  for (const auto* stack : {&spec.encoder_layers, &spec.layers}) {
    for (const model::LayerSpec& layer : *stack) {
      widen_for(layer.attention);
      if (layer.cross_attention) widen_for(*layer.cross_attention);
      if (layer.moe) WidenRow(widths.router, layer.moe->num_experts + 1);
    }
  }
  return widths;
}

// Gives each buffer its place; with `base` null only the size is found.
uint64_t PlaceRows(const model::ModelSpec& spec, kernels::ActivationFormat format,
                   const FrameShape& shape, std::byte* base, Activations* out) {
  constexpr auto kFloat = kernels::ActivationFormat::kF32;
  const kernels::ActivationFormat wide = WideFormat(format);
  const RowWidths widths = WidestRowsOf(spec);
  const int64_t hidden = spec.hidden_size;
  const int64_t tokens = shape.tokens;
  RowPlacer place(base);
  out->format = format;
  out->num_slots = shape.slots;
  out->hidden = place.Rows(tokens, hidden, kFloat);
  out->normed = place.Rows(tokens, hidden, format);
  out->normed_float = place.Rows(tokens, hidden, kFloat);
  out->qkv = place.Rows(tokens, widths.qkv_dim, kFloat);
  out->attention_out = place.Rows(tokens, widths.output_dim, format);
  out->attention_wide =
      wide == format ? out->attention_out : place.Rows(tokens, widths.output_dim, wide);
  out->router_logits = place.Rows(tokens, widths.router, kFloat);
  out->slot_out = place.Rows(shape.slots, hidden, kFloat);
  if (shape.is_partial) out->partial_out = place.Rows(tokens, hidden, kFloat);
  out->shared_out = place.Rows(tokens, hidden, kFloat);
  return place.used_bytes();
}

}  // namespace

uint64_t Activations::SizeBytes(const model::ModelSpec& spec, kernels::ActivationFormat format,
                                const FrameShape& shape) {
  Activations unplaced;
  return PlaceRows(spec, format, shape, nullptr, &unplaced);
}

Result<Activations> Activations::Create(const model::ModelSpec& spec,
                                        kernels::ActivationFormat format, const FrameShape& shape,
                                        memory::Ledger& ledger) {
  Result<memory::Reservation> memory =
      ledger.Allocate(memory::Use::kWorking, SizeBytes(spec, format, shape));
  if (!memory) return memory.error();
  Result<memory::Reservation> exchange =
      ledger.Allocate(memory::Use::kExchange, static_cast<uint64_t>(shape.exchange_bytes));
  if (!exchange) return exchange.error();
  Activations activations;
  activations.memory = std::move(*memory);
  activations.exchange = std::move(*exchange);
  PlaceRows(spec, format, shape, activations.memory.data(), &activations);
  return activations;
}

}  // namespace convene::device
