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

std::vector<LayerShape> LayerShapesOf(const model::ModelSpec& spec, int num_layers) {
  std::vector<LayerShape> shapes;
  for (int i = 0; i < spec.num_layers(); ++i) {
    const model::LayerSpec& layer = spec.layers[static_cast<size_t>(i)];
    const auto found = std::find_if(shapes.begin(), shapes.end(), [&](const LayerShape& shape) {
      return AreAlike(shape.spec.layers.front(), layer);
    });
    if (found != shapes.end()) {
      ++found->count;
      continue;
    }
    LayerShape shape{.spec = spec, .count = 1, .first = i};
    shape.spec.tensors.clear();
    shape.spec.encoder_layers.clear();
    shape.spec.layers.assign(static_cast<size_t>(num_layers), layer);
    shapes.push_back(std::move(shape));
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
