// DeepSeek-V2 (DeepSeek-AI, 2024, arXiv 2405.04434; transformers models/deepseek_v2): latent
// attention, and a softmax router that may be limited to the best groups of experts.
#include "base/quote.h"
#include "model/config_limits.h"
#include "model/deepseek_config.h"
#include "model/family.h"

namespace convene::model {

Result<ModelSpec> ReadDeepseekV2(ConfigFields& config) {
  if (!config.Has("num_experts_per_tok")) config.Fail("num_experts_per_tok is missing");
  MoeSpec moe = {
      .num_experts = ReadRoutedExperts(config, "num_experts", 64),
      .top_k = config.Integer("num_experts_per_tok", 1, kExpertCount),
      .group_score = GroupScore::kMax,
  };
  moe.routed_scale = static_cast<float>(config.Number("routed_scaling_factor", 1, kMultiplier));
  // As the published code, which divides by the sum instead of scaling; transformers ignores it.
  if (config.Boolean("norm_topk_prob", false) && moe.top_k > 1) {
    moe.router_norm = RouterNorm::kSum;
    moe.routed_scale = 1;
  }
  CheckText(config, "scoring_func", "softmax");
  const std::string method = config.Text("topk_method", "greedy");
  if (method == "group_limited_greedy") {
    if (!config.Has("n_group") || !config.Has("topk_group")) {
      config.Fail("topk_method group_limited_greedy needs n_group and topk_group");
    }
    ReadExpertGroups(config, 1, 1, moe);
  } else if (method != "greedy") {
    config.Fail(
        fmt::format("topk_method {} is not supported; it must be greedy or group_limited_greedy",
                    Quote(method)));
  }
  return ReadDeepseek(config,
                      {.vocab_size = 102400,
                       .hidden_size = 4096,
                       .num_layers = 32,
                       .num_heads = 32,
                       .intermediate_size = 11008,
                       .moe_intermediate_size = 1407,
                       .num_shared_experts = 2,
                       .num_dense_layers = 0,
                       .max_positions = 2048},
                      moe);
}

}  // namespace convene::model
