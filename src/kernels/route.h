// From router logits to the work of the experts: which rows each expert gets, and in which order a
// token's expert outputs are summed.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "kernels/kernel_set.h"

namespace convene::kernels {

enum class GateScoreKind { kSoftmax, kSigmoid };
enum class GateNormKind { kNone, kSum, kPNorm };
enum class GroupScoreKind { kMax, kTopTwoSum };

struct Gate {
  int num_experts = 0;
  int top_k = 0;  // at most kMaxTopK
  GateScoreKind score = GateScoreKind::kSoftmax;
  // kSigmoid: (num_experts), added to the scores for choosing only; or null.
  const float* correction = nullptr;
  // Of consecutive experts, of equal size; the best top_groups (at most kMaxTopK) of them compete.
  int num_groups = 1;
  int top_groups = 1;
  GroupScoreKind group_score = GroupScoreKind::kMax;
  GateNormKind norm = GateNormKind::kNone;
  float norm_p = 1;
  float scale = 1;  // of the weights, after the norm
};

// The top_k experts of one token in increasing order of expert, with their weights: the experts of
// the best groups with the largest scores (softmax over all experts, or sigmoid), the lowest index
// first on ties, divided as the gate says. `logits` (num_experts) may be overwritten by
// scores.
void SelectExperts(const Gate& gate, float* logits, int32_t* experts, float* weights);

// Tokens sorted by expert. A slot is one (token, expert); slots of an expert are consecutive and in
// the order of their tokens.
struct Dispatch {
  std::vector<int32_t> first_slot;     // (num_experts + 1)
  std::vector<int32_t> token_of_slot;  // (num_tokens * top_k)
  std::vector<int32_t> slot;           // (num_tokens, top_k), the slot of a token's i-th expert
};

// `experts` (num_tokens, top_k) in increasing order per token.
void SortByExpert(int num_experts, int top_k, std::span<const int32_t> experts, Dispatch* dispatch);

// The sums of a fixed binary tree over expert indices, for `count` experts in increasing order:
// neighbours meet at the lowest common ancestor, missing leaves are skipped. So an aligned
// power-of-two share of the experts is a whole subtree, and ranks that hold such shares add
// finished subtrees. Writes count - 1 merges.
void TreeMerges(const int32_t* experts, int count, Merge* merges);

}  // namespace convene::kernels
