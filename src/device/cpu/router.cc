#include "device/cpu/router.h"

namespace convene::device {

kernels::Router RouterOf(const model::MoeSpec& moe, const weights::MoeWeights& weights) {
  kernels::Router router{.num_experts = moe.num_experts,
                         .top_k = moe.top_k,
                         .score = moe.score,
                         .num_expert_groups = moe.num_expert_groups,
                         .top_expert_groups = moe.top_expert_groups,
                         .group_score = moe.group_score,
                         .norm = moe.router_norm,
                         .norm_p = moe.router_norm_p,
                         .scale = moe.routed_scale};
  if (!weights.correction_bias.empty()) router.correction = weights.correction_bias.data();
  return router;
}

}  // namespace convene::device
