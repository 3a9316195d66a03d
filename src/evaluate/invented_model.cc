#include "evaluate/invented_model.h"

#include <cmath>
#include <utility>

#include "weights/random_weights.h"
#include "weights/share.h"

namespace convene::evaluate {
namespace {

constexpr int kPositions = 8192;
constexpr int kRotatedOfLatent = 64;

model::AttentionSpec InventAttention(const ModelShape& shape) {
  const int head_dim = shape.head_dim > 0 ? shape.head_dim : shape.hidden / shape.heads;
  model::AttentionSpec attention{.num_heads = shape.heads,
                                 .num_kv_heads = shape.kv_heads > 0 ? shape.kv_heads : shape.heads,
                                 .head_dim = head_dim,
                                 .value_dim = head_dim,
                                 .qk_norm = shape.qk_norm};
  if (shape.latent > 0) {
    attention.num_kv_heads = shape.heads;
    attention.head_dim = head_dim + kRotatedOfLatent;
    attention.latent = model::LatentSpec{
        .kv_rank = shape.latent, .nope_dim = head_dim, .rope_dim = kRotatedOfLatent};
  }
  attention.scale = 1 / std::sqrt(static_cast<float>(attention.head_dim));
  return attention;
}

}  // namespace

model::ModelSpec InventSpec(const ModelShape& shape) {
  model::LayerSpec layer;
  layer.attention = InventAttention(shape);
  const auto activation = shape.gated ? model::Activation::kSiluMul : model::Activation::kRelu;
  layer.moe = model::MoeSpec{.num_experts = shape.experts,
                             .top_k = shape.top_k,
                             .intermediate_size = shape.intermediate,
                             .activation = {.kind = activation},
                             .shared_intermediate_size = shape.shared_intermediate};
  model::ModelSpec spec;
  spec.family = "invented";
  spec.vocab_size = shape.vocab;
  spec.hidden_size = shape.hidden;
  spec.max_positions = kPositions;
  spec.rope.rotary_dim = shape.latent > 0 ? kRotatedOfLatent : layer.attention.head_dim;
  spec.layers.assign(static_cast<size_t>(shape.layers), layer);
  if (shape.dense_intermediate > 0) {
    spec.layers.front().moe.reset();
    spec.layers.front().dense_intermediate_size = shape.dense_intermediate;
    spec.layers.front().dense_activation = {.kind = activation};
  }
  return spec;
}

Result<std::unique_ptr<InventedModel>> InventedModel::Create(const model::ModelSpec& whole,
                                                             const weights::WeightFormats& formats,
                                                             const strategy::Layout& layout,
                                                             int rank, memory::Ledger& ledger) {
  std::unique_ptr<InventedModel> model(new InventedModel);
  model->whole_ = whole;
  auto weights =
      weights::RandomWeights(whole, formats, weights::ShareOf(layout, rank), rank, ledger);
  if (!weights) return weights.error();
  model->weights_ = *std::move(weights);
  return model;
}

}  // namespace convene::evaluate
