#include "device/cpu/distance_biases.h"

#include <iterator>
#include <span>

#include "model/relative_bias.h"

namespace convene::device {
namespace {

std::vector<float> TableOf(const model::ModelSpec& spec,
                           const std::vector<model::LayerSpec>& layers,
                           std::span<const float> learned) {
  const model::AttentionSpec& attention = layers.front().attention;
  if (!attention.relative_bias) return {};
  return model::BiasByDistance(*spec.relative_bias, learned, attention.num_heads,
                               /*bidirectional=*/!attention.causal, kernels::kLanes);
}

}  // namespace

DistanceBiases::DistanceBiases(const weights::WeightStore& weights) : spec_(weights.spec()) {
  decoder_ = TableOf(spec_, spec_.layers, weights.RelativeBias(/*encoder=*/false));
  if (!spec_.has_encoder()) return;
  encoder_ = TableOf(spec_, spec_.encoder_layers, weights.RelativeBias(/*encoder=*/true));
}

kernels::DistanceBias DistanceBiases::Of(const Layer& layer) const {
  const std::vector<float>& table = layer.is_encoder ? encoder_ : decoder_;
  if (table.empty()) return {};
  return {.table = table.data(),
          .head_stride = std::ssize(table) / layer.spec.attention.num_heads,
          .reach = spec_.relative_bias->max_distance};
}

}  // namespace convene::device
