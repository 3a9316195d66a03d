// DeepSeek-V3 (DeepSeek-AI, 2024, arXiv 2412.19437; transformers models/deepseek_v3): V2 with a
// sigmoid router whose choice is balanced by a bias per expert, and FP8 weights.
#include "model/config_limits.h"
#include "model/deepseek_config.h"
#include "model/family.h"

namespace convene::model {

Result<ModelSpec> ReadDeepseekV3(ConfigFields& config) {
  MoeSpec moe = {
      .num_experts = ReadRoutedExperts(config, "num_local_experts", 256),
      .top_k = config.Integer("num_experts_per_tok", 8, kExpertCount),
      .score = RouterScore::kSigmoid,
      .correction_bias = true,
      .group_score = GroupScore::kTopTwoSum,
      .router_norm = config.Boolean("norm_topk_prob", true) ? RouterNorm::kSum : RouterNorm::kNone,
      .routed_scale = static_cast<float>(config.Number("routed_scaling_factor", 2.5, kMultiplier)),
  };
  CheckText(config, "scoring_func", "sigmoid");
  CheckText(config, "topk_method", "noaux_tc");
  ReadExpertGroups(config, 8, 4, moe);
  return ReadDeepseek(config,
                      {.vocab_size = 129280,
                       .hidden_size = 7168,
                       .num_layers = 61,
                       .num_heads = 128,
                       .intermediate_size = 18432,
                       .moe_intermediate_size = 2048,
                       .num_shared_experts = 1,
                       .num_dense_layers = 3,
                       .max_positions = 4096,
                       .interleaved_rope = config.Boolean("rope_interleave", true)},
                      moe);
}

}  // namespace convene::model
