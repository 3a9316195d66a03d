// OLMoE (Muennighoff et al., "OLMoE: Open Mixture-of-Experts Language Models", 2024; transformers
// models/olmoe).
#include "model/decoder_config.h"
#include "model/decoder_tensors.h"
#include "model/family.h"

namespace convene::model {

Result<ModelSpec> ReadOlmoe(ConfigFields& config) {
  DecoderConfig decoder = ReadDecoder(config, {.vocab_size = 50304,
                                               .hidden_size = 2048,
                                               .num_layers = 16,
                                               .num_heads = 16,
                                               .max_positions = 4096,
                                               .norm_epsilon = 1e-5,
                                               .rope_theta = 1e4});
  AttentionSpec& attention = decoder.attention;
  attention.qkv_bias = config.Boolean("attention_bias", false);
  attention.output_bias = attention.qkv_bias;
  attention.qk_norm = QkNorm::kWholeProjection;
  attention.clip_qkv = config.OptionalNumber("clip_qkv", kClip);
  if (attention.query_dim() != decoder.spec.hidden_size) {
    config.Fail(fmt::format(
        "olmoe needs heads that make up the hidden size: {} heads of {} are {}, not {}",
        attention.num_heads, attention.head_dim, attention.query_dim(), decoder.spec.hidden_size));
  }
  const MoeSpec moe = {
      .num_experts = config.Integer({"num_experts", "num_local_experts"}, 64, kExpertCount),
      .top_k = config.Integer("num_experts_per_tok", 8, kExpertCount),
      .intermediate_size = config.Integer("intermediate_size", 2048, kIntermediate),
      .router_norm = config.Boolean("norm_topk_prob", false) ? RouterNorm::kSum : RouterNorm::kNone,
  };
  CheckExperts(config, moe, decoder.num_layers);
  if (!config.ok()) return config.error();

  ModelSpec& spec = decoder.spec;
  spec.layers.assign(decoder.num_layers, {.attention = attention, .moe = moe});
  BindDecoder(spec);
  return std::move(spec);
}

}  // namespace convene::model
