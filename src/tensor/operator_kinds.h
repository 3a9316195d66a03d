// Which of their variants a model's operators are: its spec says so (model/), and kernels compute
// them. Not their sizes and constants, which are fields beside these.
#pragma once

namespace convene::tensor {

enum class NormKind { kRms, kLayer };  // RMSNorm; LayerNorm (mean subtracted), weight only

// RMSNorm of queries and keys before RoPE: over each head (weights (head_dim)), or over the whole
// projection (weights (num_heads * head_dim) and (num_kv_heads * head_dim)).
enum class QkNorm { kNone, kPerHead, kWholeProjection };

// How a router's logits become scores.
enum class RouterScore { kSoftmax, kSigmoid };

// Where experts are chosen among the best groups of experts only: what a group is worth.
enum class GroupScore { kMax, kTopTwoSum };

// Router weights are the scores of the top k experts divided by ...
enum class RouterNorm {
  kNone,  // ... nothing
  kSum,   // ... their sum
  kPNorm  // ... their p-norm (dbrx: moe_normalize_expert_weights = p)
};

}  // namespace convene::tensor
