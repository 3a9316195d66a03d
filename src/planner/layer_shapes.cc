#include "planner/layer_shapes.h"

#include <algorithm>
#include <utility>

namespace convene::planner {

bool AreAlike(const model::LayerSpec& a, const model::LayerSpec& b) {
  if (a.moe.has_value() != b.moe.has_value()) return false;
  if (a.dense_intermediate_size != b.dense_intermediate_size && !a.moe) return false;
  if (a.moe && (a.moe->num_experts != b.moe->num_experts ||
                a.moe->intermediate_size != b.moe->intermediate_size ||
                a.moe->shared_intermediate_size != b.moe->shared_intermediate_size ||
                a.moe->top_k != b.moe->top_k)) {
    return false;
  }
  return a.attention.window == b.attention.window &&
         a.attention.num_heads == b.attention.num_heads &&
         a.attention.num_kv_heads == b.attention.num_kv_heads;
}

model::ModelSpec DecoderOf(const model::ModelSpec& spec, std::vector<model::LayerSpec> layers) {
  model::ModelSpec decoder;
  decoder.family = spec.family;
  decoder.vocab_size = spec.vocab_size;
  decoder.hidden_size = spec.hidden_size;
  decoder.max_positions = spec.max_positions;
  decoder.norm = spec.norm;
  decoder.tied_embeddings = spec.tied_embeddings;
  decoder.embedding_scale = spec.embedding_scale;
  decoder.residual_scale = spec.residual_scale;
  decoder.logits_scale = spec.logits_scale;
  decoder.rope = spec.rope;
  decoder.relative_bias = spec.relative_bias;
  decoder.layers = std::move(layers);
  return decoder;
}

std::vector<LayerShape> LayerShapesOf(const model::ModelSpec& spec, int num_layers) {
  return LayerShapesOf(spec, spec.layers, num_layers);
}

std::vector<LayerShape> LayerShapesOf(const model::ModelSpec& spec,
                                      std::span<const model::LayerSpec> layers, int num_layers) {
  std::vector<LayerShape> shapes;
  for (int i = 0; i < std::ssize(layers); ++i) {
    const model::LayerSpec& layer = layers[static_cast<size_t>(i)];
    const auto found = std::find_if(shapes.begin(), shapes.end(), [&](const LayerShape& shape) {
      return AreAlike(shape.spec.layers.front(), layer);
    });
    if (found != shapes.end()) {
      ++found->count;
      continue;
    }
    const std::vector<model::LayerSpec> alike(static_cast<size_t>(num_layers), layer);
    shapes.push_back({.spec = DecoderOf(spec, alike), .count = 1, .first = i});
  }
  return shapes;
}

int FewestExperts(const model::ModelSpec& spec) {
  int fewest = 0;
  for (const model::LayerSpec& layer : spec.layers) {
    if (!layer.moe) continue;
    fewest = fewest == 0 ? layer.moe->num_experts : std::min(fewest, layer.moe->num_experts);
  }
  return fewest;
}

}  // namespace convene::planner
