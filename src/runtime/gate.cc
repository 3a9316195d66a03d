#include "runtime/gate.h"

namespace convene::runtime {

kernels::Gate GateOf(const model::MoeSpec& moe, const weights::MoeWeights& weights) {
  kernels::Gate gate{.num_experts = moe.num_experts,
                     .top_k = moe.top_k,
                     .score = moe.score == model::RouterScore::kSigmoid
                                  ? kernels::GateScoreKind::kSigmoid
                                  : kernels::GateScoreKind::kSoftmax,
                     .num_groups = moe.num_groups,
                     .top_groups = moe.top_groups,
                     .group_score = moe.group_score == model::GroupScore::kTopTwoSum
                                        ? kernels::GroupScoreKind::kTopTwoSum
                                        : kernels::GroupScoreKind::kMax,
                     .scale = moe.routed_scale};
  if (!weights.correction_bias.empty()) gate.correction = weights.correction_bias.data();
  switch (moe.gate_norm) {
    case model::GateNorm::kNone:
      gate.norm = kernels::GateNormKind::kNone;
      break;
    case model::GateNorm::kSum:
      gate.norm = kernels::GateNormKind::kSum;
      break;
    case model::GateNorm::kPNorm:
      gate.norm = kernels::GateNormKind::kPNorm;
      gate.norm_p = moe.gate_norm_p;
      break;
  }
  return gate;
}

}  // namespace convene::runtime
