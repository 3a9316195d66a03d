#include "runtime/layer_stack.h"

#include <iterator>
#include <span>

#include "kernels/pack.h"
#include "model/relative_bias.h"

namespace convene::runtime {
namespace {

// Scores by distance, or nothing where the stack has none.
std::vector<float> BiasOf(const model::ModelSpec& spec, const std::vector<model::LayerSpec>& layers,
                          std::span<const float> table) {
  const model::AttentionSpec& attention = layers.front().attention;
  if (!attention.relative_bias) return {};
  return model::BiasByDistance(*spec.relative_bias, table, attention.num_heads,
                               /*bidirectional=*/!attention.causal, kernels::kLanes);
}

// The encoder's layers use the first decoder layer's part of the cache, which gets the decoder's
// keys and values only afterwards.
std::vector<Layer> StackOf(const model::ModelSpec& spec, const std::vector<model::LayerSpec>& specs,
                           std::span<const float> bias, bool is_encoder) {
  std::vector<Layer> layers;
  for (size_t i = 0; i < specs.size(); ++i) {
    kernels::DistanceBias by_distance;
    if (!bias.empty()) {
      by_distance = {.table = bias.data(),
                     .head_stride = std::ssize(bias) / specs[i].attention.num_heads,
                     .reach = spec.relative_bias->max_distance};
    }
    layers.push_back({.spec = specs[i],
                      .index = static_cast<int>(i),
                      .is_encoder = is_encoder,
                      .cache_layer = is_encoder ? 0 : static_cast<int>(i),
                      .bias = by_distance});
  }
  return layers;
}

}  // namespace

LayerStacks::LayerStacks(const weights::WeightStore& weights) {
  const model::ModelSpec& spec = weights.spec();
  decoder_bias_ = BiasOf(spec, spec.layers, weights.RelativeBias(/*encoder=*/false));
  decoder_ = StackOf(spec, spec.layers, decoder_bias_, /*is_encoder=*/false);
  if (!spec.has_encoder()) return;
  encoder_bias_ = BiasOf(spec, spec.encoder_layers, weights.RelativeBias(/*encoder=*/true));
  encoder_ = StackOf(spec, spec.encoder_layers, encoder_bias_, /*is_encoder=*/true);
}

}  // namespace convene::runtime
