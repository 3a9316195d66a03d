// From router logits to the work of the experts: which experts a token gets, and in which order
// their outputs are summed.
#pragma once

#include <cstdint>

#include "kernels/kernel_set.h"
#include "tensor/operator_kinds.h"

namespace convene::kernels {

using tensor::GroupScore;
using tensor::RouterNorm;
using tensor::RouterScore;

// How experts are chosen from a router's logits, and how their weights are made of their scores.
struct Router {
  int num_experts = 0;
  int top_k = 0;  // at most kMaxTopK
  RouterScore score = RouterScore::kSoftmax;
  // kSigmoid: (num_experts), added to the scores for choosing only; or null.
  const float* correction = nullptr;
  // Groups of consecutive experts; the best top_expert_groups (at most kMaxTopK) of them compete.
  int num_expert_groups = 1;
  int top_expert_groups = 1;
  GroupScore group_score = GroupScore::kMax;
  RouterNorm norm = RouterNorm::kNone;
  float norm_p = 1;
  float scale = 1;  // of the weights, after the norm
};

// The top_k experts of one token in increasing order of expert, with their weights: the experts of
// the best groups with the largest scores (softmax over all experts, or sigmoid), the lowest index
// first on ties, divided as the router says. `logits` (num_experts) may be overwritten by
// scores.
void SelectExperts(const Router& router, float* logits, int32_t* experts, float* weights);

// The sums of a fixed binary tree over expert indices, for `count` experts in increasing order:
// neighbours meet at the lowest common ancestor, missing leaves are skipped. So an aligned
// power-of-two share of the experts is a whole subtree, and ranks that hold such shares add
// finished subtrees. Writes count - 1 merges.
void TreeMerges(const int32_t* experts, int count, Merge* merges);

}  // namespace convene::kernels
