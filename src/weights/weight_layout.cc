#include "weights/weight_layout.h"

#include <algorithm>

#include "base/check.h"
#include "weights/expert_parts.h"

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
    FfnWeights ffn = FfnOf({.matrices = format, .group = group_}, activation, hidden, intermediate);
    used_bytes_ += PlaceFfnAt(base_ != nullptr ? base_ + used_bytes_ : nullptr, &ffn);
    return ffn;
  }

  // From `begin` on at least so many.
  void FillUp(uint64_t begin, uint64_t size_bytes) {
    CHECK(used_bytes_ - begin <= size_bytes || size_bytes == 0, "{} bytes in a room of {}",
          used_bytes_ - begin, size_bytes);
    used_bytes_ = std::max(used_bytes_, begin + size_bytes);
  }
  const std::byte* here() const { return base_ != nullptr ? base_ + used_bytes_ : nullptr; }

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
                    uint64_t room_bytes, Placer* placer) {
  MoeWeights weights;
  const strategy::Part experts = ExpertsOf(moe, share);
  weights.first_expert = experts.first;
  const int gate_rows = moe.shared_expert_gate ? 1 : 0;
  if (share.with_attention) {
    weights.router = placer->Place(WeightFormat::kF32, moe.num_experts + gate_rows, hidden);
  }
  const uint64_t begin = placer->used_bytes();
  for (int expert = 0; expert < experts.size; ++expert) {
    weights.experts.push_back(
        placer->PlaceFfn(format, moe.activation, hidden, moe.intermediate_size));
  }
  placer->FillUp(begin, room_bytes);
  if (moe.shared_intermediate_size > 0) {
    weights.shared = placer->PlaceFfn(format, moe.activation, hidden, moe.shared_intermediate_size);
  }
  return weights;
}

void PlaceAttention(const model::LayerSpec& layer, WeightFormat format, int hidden, Placer* placer,
                    LayerWeights* placed) {
  const model::AttentionSpec& attention = layer.attention;
  if (attention.latent) {
    PlaceLatent(attention, format, hidden, placer, placed);
  } else {
    const int qkv_dim = attention.query_dim() + attention.kv_dim() + attention.value_width();
    placed->qkv = placer->Place(format, qkv_dim, hidden);
  }
  placed->output = placer->Place(format, hidden, attention.output_dim());
  if (!layer.cross_attention) return;
  const model::AttentionSpec& cross = *layer.cross_attention;
  CrossWeights& cross_weights = placed->cross.emplace();
  cross_weights.query = placer->Place(format, cross.query_dim(), hidden);
  cross_weights.kv = placer->Place(format, cross.kv_dim() + cross.value_width(), hidden);
  cross_weights.output = placer->Place(format, hidden, cross.output_dim());
}

void PlaceLayers(const model::ModelSpec& spec, const std::vector<model::LayerSpec>& layers,
                 WeightFormat format, const Share& share, uint64_t room_bytes, Placer* placer,
                 std::vector<LayerWeights>* weights) {
  const int hidden = spec.hidden_size;
  const auto num_layers = static_cast<int>(layers.size());
  for (int i = 0; i < num_layers; ++i) {
    const model::LayerSpec& layer = layers[static_cast<size_t>(i)];
    LayerWeights& placed = weights->emplace_back();
    if (!share.stage.HasLayer(i, num_layers)) continue;
    if (share.with_attention) PlaceAttention(layer, format, hidden, placer, &placed);
    if (layer.moe) {
      placed.moe = PlaceMoe(*layer.moe, format, hidden, share, room_bytes, placer);
    } else if (share.with_attention) {
      placed.dense =
          placer->PlaceFfn(format, layer.dense_activation, hidden, layer.dense_intermediate_size);
    }
  }
}

}  // namespace

double BytesPerWeight(const WeightFormats& formats) {
  constexpr int kSide = 1024;
  const PackedMatrix matrix{
      .format = formats.matrices, .group = formats.group, .rows = kSide, .cols = kSide};
  return static_cast<double>(matrix.size_bytes()) / (kSide * kSide);
}

ExpertRooms RoomsOf(const model::ModelSpec& whole, const WeightFormats& formats,
                    const Share& share) {
  ExpertRooms rooms;
  if (!share.decode) return rooms;
  int num_changing = 0;
  for (const model::LayerSpec& layer : whole.layers) {
    if (!layer.moe) continue;
    const ExpertPart parts[] = {ExpertPartOf(*layer.moe, share, formats),
                                ExpertPartOf(*layer.moe, InDecode(share), formats)};
    for (const ExpertPart& part : parts) {
      const FfnWeights one =
          FfnOf(formats, layer.moe->activation, whole.hidden_size, part.slice.size);
      rooms.room_bytes =
          std::max(rooms.room_bytes, SizeBytes(one) * static_cast<uint64_t>(part.experts.size));
    }
    num_changing += parts[0] == parts[1] ? 0 : 1;
  }
  if (num_changing == 0) return {};
  rooms.num_free = share.decode->beside ? num_changing : 1;
  return rooms;
}

uint64_t LayOut(const model::ModelSpec& spec, const WeightFormats& formats, const std::byte* base,
                ModelWeights* weights, const Share& share, const ExpertRooms& rooms) {
  Placer placer(base, formats.group);
  weights->spec = spec;
  weights->formats = formats;
  weights->layers.clear();
  weights->encoder.reset();
  weights->head = {};
  weights->embedding = {};
  if (share.with_head()) {
    static_assert(strategy::kHeadPanelTokens == kernels::kPanelRows);
    const strategy::Part tokens = share.head->TokensOf(spec.vocab_size);
    weights->first_head_token = tokens.first;
    weights->head = share.with_embedding() && weights->embedding_is_head()
                        ? PackedMatrix{.format = formats.head(),
                                       .group = formats.group,
                                       .rows = tokens.size,
                                       .cols = spec.hidden_size}
                        : placer.Place(formats.head(), tokens.size, spec.hidden_size);
  }
  if (share.with_embedding()) {
    weights->embedding = placer.Place(formats.embedding(), spec.vocab_size, spec.hidden_size);
  }
  if (base != nullptr) weights->PlaceHeadInEmbedding();
  if (!spec.encoder_layers.empty()) {
    EncoderWeights& encoder = weights->encoder.emplace();
    encoder.embedding = spec.tied_embeddings
                            ? weights->embedding
                            : placer.Place(formats.embedding(), spec.vocab_size, spec.hidden_size);
    PlaceLayers(spec, spec.encoder_layers, formats.matrices, share, /*room_bytes=*/0, &placer,
                &encoder.layers);
  }
  PlaceLayers(spec, spec.layers, formats.matrices, share, rooms.room_bytes, &placer,
              &weights->layers);
  weights->rooms = rooms;
  weights->rooms.free = placer.here();
  return placer.used_bytes() + rooms.room_bytes * static_cast<uint64_t>(rooms.num_free);
}

void LayOutDecode(const model::ModelSpec& whole, const Share& share, ModelWeights* weights) {
  ExpertRooms& rooms = weights->rooms;
  for (size_t layer = 0; layer < whole.layers.size(); ++layer) {
    if (!whole.layers[layer].moe) continue;
    const model::MoeSpec& spec = *whole.layers[layer].moe;
    MoeWeights& moe = *weights->layers[layer].moe;
    const ExpertPart part = ExpertPartOf(spec, InDecode(share), weights->formats);
    moe.first_decode_expert = part.experts.first;
    moe.decode_experts.assign(
        static_cast<size_t>(part.experts.size),
        FfnOf(weights->formats, spec.activation, whole.hidden_size, part.slice.size));
    const bool stays = part == ExpertPartOf(spec, share, weights->formats);
    if (!share.decode->beside || rooms.free == nullptr || stays) continue;
    const std::byte* at = rooms.free;
    for (FfnWeights& expert : moe.decode_experts) at += PlaceFfnAt(at, &expert);
    rooms.free += rooms.room_bytes;
    --rooms.num_free;
  }
}

}  // namespace convene::weights
