#include "runtime/gate.h"

namespace convene::runtime {

kernels::Gate GateOf(const model::MoeSpec& moe, const weights::MoeWeights& weights) {
  kernels::Gate gate{.num_experts = moe.num_experts,
                     .top_k = moe.top_k,
                     .score = moe.score,
                     .num_groups = moe.num_groups,
                     .top_groups = moe.top_groups,
                     .group_score = moe.group_score,
                     .norm = moe.gate_norm,
                     .norm_p = moe.gate_norm_p,
                     .scale = moe.routed_scale};
  if (!weights.correction_bias.empty()) gate.correction = weights.correction_bias.data();
  return gate;
}

}  // namespace convene::runtime
