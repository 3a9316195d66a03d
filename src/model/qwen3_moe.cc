// Qwen3 MoE (Yang et al., "Qwen3 Technical Report", 2025; transformers models/qwen3_moe).
#include "model/decoder_config.h"
#include "model/decoder_tensors.h"
#include "model/family.h"
#include "model/quantization.h"

namespace convene::model {

Result<ModelSpec> ReadQwen3Moe(ConfigFields& config) {
  DecoderConfig decoder = ReadDecoder(config, {.vocab_size = 151936,
                                               .hidden_size = 2048,
                                               .num_layers = 24,
                                               .num_heads = 32,
                                               .num_kv_heads = 4,
                                               .max_positions = 32768,
                                               .norm_epsilon = 1e-6,
                                               .rope_theta = 1e4});
  AttentionSpec& attention = decoder.attention;
  attention.qkv_bias = config.Boolean("attention_bias", false);
  attention.output_bias = attention.qkv_bias;
  attention.qk_norm = QkNorm::kPerHead;
  if (config.Boolean("use_sliding_window", false)) {
    attention.window = ReadWindow(config, 4096);
  }
  const MoeSpec moe = {
      .num_experts = config.Integer({"num_experts", "num_local_experts"}, 128, kExpertsOrNone),
      .top_k = config.Integer("num_experts_per_tok", 8, kExpertCount),
      .intermediate_size = config.Integer("moe_intermediate_size", 768, kIntermediate),
      .router_norm = config.Boolean("norm_topk_prob", false) ? RouterNorm::kSum : RouterNorm::kNone,
  };
  CheckExperts(config, moe, decoder.num_layers);
  const int dense_intermediate_size = config.Integer("intermediate_size", 6144, kIntermediate);

  ModelSpec& spec = decoder.spec;
  spec.layers =
      ReadSparseAndDenseLayers(config, decoder.num_layers, attention, moe, dense_intermediate_size);
  if (!config.ok()) return config.error();
  BindDecoder(spec, {.storage = ReadStorage(config)});
  return std::move(spec);
}

}  // namespace convene::model
