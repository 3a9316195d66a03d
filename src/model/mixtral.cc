// Mixtral (Jiang et al., "Mixtral of Experts", 2024; transformers models/mixtral).
#include "model/decoder_config.h"
#include "model/decoder_tensors.h"
#include "model/family.h"

namespace convene::model {

Result<ModelSpec> ReadMixtral(ConfigFields& config) {
  DecoderConfig decoder = ReadDecoder(config, {.vocab_size = 32000,
                                               .hidden_size = 4096,
                                               .num_layers = 32,
                                               .num_heads = 32,
                                               .num_kv_heads = 8,
                                               .max_positions = 131072,
                                               .norm_epsilon = 1e-5,
                                               .rope_theta = 1e6});
  decoder.attention.window = ReadWindow(config, 0);
  const MoeSpec moe = {
      .num_experts = config.Integer({"num_local_experts", "num_experts"}, 8, kExpertCount),
      .top_k = config.Integer("num_experts_per_tok", 2, kExpertCount),
      .intermediate_size = config.Integer("intermediate_size", 14336, kIntermediate),
      .router_norm = RouterNorm::kSum,
  };
  CheckExperts(config, moe, decoder.num_layers);
  if (!config.ok()) return config.error();

  ModelSpec& spec = decoder.spec;
  spec.layers.assign(decoder.num_layers, {.attention = decoder.attention, .moe = moe});
  BindDecoder(spec, {.block = "block_sparse_moe", .gate = "w1", .up = "w3", .down = "w2"});
  return std::move(spec);
}

}  // namespace convene::model
