#include "weights/weight_layout.h"

#include "kernels/pack.h"

namespace convene::weights {
namespace {

using kernels::PackedMatrix;
using kernels::WeightFormat;

class Placer {
 public:
  Placer(const std::byte* base, int group) : base_(base), group_(group) {}

  uint64_t used_bytes() const { return used_bytes_; }

  PackedMatrix Place(WeightFormat format, int rows, int cols) {
    PackedMatrix matrix{.format = format, .group = group_, .rows = rows, .cols = cols};
    if (base_ != nullptr) matrix.data = base_ + used_bytes_;
    used_bytes_ += matrix.size_bytes();
    return matrix;
  }

  FfnWeights PlaceFfn(WeightFormat format, const model::ActivationSpec& activation, int hidden,
                      int intermediate) {
    FfnWeights ffn;
    const int up_rows = activation.gated() ? kernels::GateUpRows(intermediate) : intermediate;
    ffn.up = Place(format, up_rows, hidden);
    ffn.down = Place(format, hidden, intermediate);
    return ffn;
  }

 private:
  const std::byte* base_;
  int group_;
  uint64_t used_bytes_ = 0;
};

void PlaceLatent(const model::AttentionSpec& attention, WeightFormat format, int hidden,
                 Placer* placer, LayerWeights* placed) {
  const model::LatentSpec& latent = *attention.latent;
  const int heads = attention.num_heads;
  const bool has_query_latent = latent.query_rank > 0;
  const int query_rows = has_query_latent ? latent.query_rank : attention.query_dim();
  placed->qkv = placer->Place(format, query_rows + latent.key_dim(), hidden);
  LatentWeights& weights = placed->latent.emplace();
  if (has_query_latent) {
    weights.query_up = placer->Place(format, attention.query_dim(), latent.query_rank);
  }
  weights.key_up =
      placer->Place(format, heads * LatentWeights::HeadRows(latent.nope_dim), latent.kv_rank);
  weights.value_up =
      placer->Place(format, heads * LatentWeights::HeadRows(attention.value_dim), latent.kv_rank);
  for (int head = 0; head < heads; ++head) {
    weights.query_in.push_back(placer->Place(format, latent.kv_rank, latent.nope_dim));
  }
}

MoeWeights PlaceMoe(const model::MoeSpec& moe, WeightFormat format, int hidden, const Share& share,
                    Placer* placer) {
  MoeWeights weights;
  const strategy::Part experts = ExpertsOf(moe, share);
  weights.first_expert = experts.first;
  const int gate_rows = moe.shared_expert_gate ? 1 : 0;
  weights.router = placer->Place(WeightFormat::kF32, moe.num_experts + gate_rows, hidden);
  for (int expert = 0; expert < experts.size; ++expert) {
    weights.experts.push_back(
        placer->PlaceFfn(format, moe.activation, hidden, moe.intermediate_size));
  }
  if (moe.shared_intermediate_size > 0) {
    weights.shared = placer->PlaceFfn(format, moe.activation, hidden, moe.shared_intermediate_size);
  }
  return weights;
}

void PlaceLayers(const model::ModelSpec& spec, const std::vector<model::LayerSpec>& layers,
                 WeightFormat format, const Share& share, Placer* placer,
                 std::vector<LayerWeights>* weights) {
  const int hidden = spec.hidden_size;
  for (const model::LayerSpec& layer : layers) {
    LayerWeights& placed = weights->emplace_back();
    const model::AttentionSpec& attention = layer.attention;
    if (attention.latent) {
      PlaceLatent(attention, format, hidden, placer, &placed);
    } else {
      const int qkv_dim = attention.query_dim() + attention.kv_dim() + attention.value_width();
      placed.qkv = placer->Place(format, qkv_dim, hidden);
    }
    placed.output = placer->Place(format, hidden, attention.output_dim());
    if (layer.cross_attention) {
      const model::AttentionSpec& cross = *layer.cross_attention;
      CrossWeights& cross_weights = placed.cross.emplace();
      cross_weights.query = placer->Place(format, cross.query_dim(), hidden);
      cross_weights.kv = placer->Place(format, cross.kv_dim() + cross.value_width(), hidden);
      cross_weights.output = placer->Place(format, hidden, cross.output_dim());
    }
    if (layer.moe) {
      placed.moe = PlaceMoe(*layer.moe, format, hidden, share, placer);
    } else {
      placed.dense =
          placer->PlaceFfn(format, layer.dense_activation, hidden, layer.dense_intermediate_size);
    }
  }
}

}  // namespace

uint64_t LayOut(const model::ModelSpec& spec, const WeightFormats& formats, const std::byte* base,
                ModelWeights* weights, const Share& share) {
  Placer placer(base, formats.group);
  weights->spec = spec;
  weights->formats = formats;
  weights->layers.clear();
  weights->encoder.reset();
  weights->head = {};
  if (share.with_head || weights->embedding_is_head()) {
    weights->head = placer.Place(formats.head(), spec.vocab_size, spec.hidden_size);
  }
  weights->embedding = weights->embedding_is_head()
                           ? weights->head
                           : placer.Place(formats.embedding(), spec.vocab_size, spec.hidden_size);
  if (!share.with_head) weights->head = {};
  if (!spec.encoder_layers.empty()) {
    EncoderWeights& encoder = weights->encoder.emplace();
    encoder.embedding = spec.tied_embeddings
                            ? weights->embedding
                            : placer.Place(formats.embedding(), spec.vocab_size, spec.hidden_size);
    PlaceLayers(spec, spec.encoder_layers, formats.matrices, share, &placer, &encoder.layers);
  }
  PlaceLayers(spec, spec.layers, formats.matrices, share, &placer, &weights->layers);
  return placer.used_bytes();
}

}  // namespace convene::weights
