// Qwen2 MoE (Yang et al., "Qwen2 Technical Report", 2024; transformers models/qwen2_moe): a shared
// expert beside the routed ones, and a sliding window in some layers.
#include <algorithm>

#include "base/quote.h"
#include "model/decoder_config.h"
#include "model/decoder_tensors.h"
#include "model/family.h"

namespace convene::model {
namespace {

// Sets the window of the layers that have one: those that layer_types names, or, without that
// field, every other layer below max_window_layers.
void ReadQwenWindows(ConfigFields& config, std::vector<LayerSpec>& layers) {
  const bool use_window = config.Boolean("use_sliding_window", false);
  const auto num_layers = static_cast<int>(layers.size());
  if (!config.Has("layer_types")) {
    const int num_window_layers = config.Integer("max_window_layers", 28, {0, INT32_MAX});
    if (!use_window || num_window_layers == 0) return;
    const int window = ReadWindow(config, 4096);
    for (int layer = 0; layer < std::min(num_layers, num_window_layers); layer += 2) {
      layers[layer].attention.window = window;
    }
    return;
  }

  const std::vector<std::string> types = config.Texts("layer_types");
  if (types.size() != layers.size()) {
    config.Fail(fmt::format("layer_types lists {} layers, but num_hidden_layers is {}",
                            types.size(), num_layers));
    return;
  }
  for (int layer = 0; layer < num_layers; ++layer) {
    if (types[layer] == "full_attention") continue;
    if (types[layer] != "sliding_attention") {
      config.Fail(
          fmt::format("layer_types[{}] is {}, but must be full_attention or sliding_attention",
                      layer, Quote(types[layer])));
    } else if (!use_window) {
      config.Fail(fmt::format(
          "layer_types[{}] is sliding_attention although use_sliding_window is false", layer));
    }
    layers[layer].attention.window = ReadWindow(config, 4096);
  }
}

}  // namespace

Result<ModelSpec> ReadQwen2Moe(ConfigFields& config) {
  DecoderConfig decoder = ReadDecoder(config, {.vocab_size = 151936,
                                               .hidden_size = 2048,
                                               .num_layers = 24,
                                               .num_heads = 16,
                                               .num_kv_heads = 16,
                                               .max_positions = 32768,
                                               .norm_epsilon = 1e-6,
                                               .rope_theta = 1e4});
  decoder.attention.qkv_bias = config.Boolean("qkv_bias", true);
  const MoeSpec moe = {
      .num_experts = config.Integer("num_experts", 60, kExpertsOrNone),
      .top_k = config.Integer("num_experts_per_tok", 4, kExpertCount),
      .intermediate_size = config.Integer("moe_intermediate_size", 1408, kIntermediate),
      .router_norm = config.Boolean("norm_topk_prob", false) ? RouterNorm::kSum : RouterNorm::kNone,
      .shared_intermediate_size =
          config.Integer("shared_expert_intermediate_size", 5632, kIntermediate),
      .shared_expert_gate = true,
  };
  CheckExperts(config, moe, decoder.num_layers);
  const int dense_intermediate_size = config.Integer("intermediate_size", 5632, kIntermediate);

  ModelSpec& spec = decoder.spec;
  spec.layers = ReadSparseAndDenseLayers(config, decoder.num_layers, decoder.attention, moe,
                                         dense_intermediate_size);
  ReadQwenWindows(config, spec.layers);
  if (!config.ok()) return config.error();
  BindDecoder(spec);
  return std::move(spec);
}

}  // namespace convene::model
