// How big a model is and how much work a token takes, counted from its ModelSpec alone. What a
// kernel really executes or a format really occupies is counted where it happens (runtime/,
// weights/).
//
// Notation: h hidden, q = heads * head_dim, g = kv_heads * head_dim, E experts, k of them per
// token, i their width, s the shared expert's, f a dense layer's, V vocabulary.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string_view>

#include "model/model_spec.h"

namespace convene::model {

enum class TensorKind {
  kEmbedding,
  kAttention,  // projections and their biases
  kNorms,
  kRouter,
  kExperts,
  kSharedExperts,  // with their gate
  kDenseFfn,
  kHead,
};
inline constexpr int kNumTensorKinds = 8;

std::string_view Name(TensorKind kind);  // "shared experts"
TensorKind KindOf(TensorRole role);

// Stored elements by kind, indexed by TensorKind; a tied head counts as the embedding alone.
using ParameterCounts = std::array<int64_t, kNumTensorKinds>;
ParameterCounts CountParameters(const ModelSpec& spec);

int64_t TotalParameters(const ModelSpec& spec);

// Those that one token's way meets: all but the E - k experts that its router leaves out in every
// layer. Embedding and head count whole, as in the figures that models are published with.
int64_t ActivatedParameters(const ModelSpec& spec);

// Elements of keys and values that one token leaves in the cache: 2 g per layer, or the latent and
// the rotated part of the keys.
int64_t KvElementsPerToken(const ModelSpec& spec);

// Floating-point operations for one token, a multiply-add counting as two. Norms, RoPE, activations
// and softmax (below one percent) are left out.
struct TokenFlops {
  double attention_projections = 0;  // per layer 2 h (q + 2 g) + 2 q h; with a latent its own
  double attention_scores = 0;       // per layer 4 q * keys it sees: q.k, then probabilities * v
  double router = 0;                 // per sparse layer 2 h E
  double experts = 0;                // per sparse layer 6 h i k
  double shared_experts = 0;         // per sparse layer 6 h s, and 2 h for the gate
  double dense_ffn = 0;              // per dense layer 6 h f
  double head = 0;                   // 2 h V, for a token whose logits are computed

  double total() const {
    return attention_projections + attention_scores + router + experts + shared_experts +
           dense_ffn + head;
  }
};

// For the token at `position` (from 0), which sees position + 1 keys, or a layer's window if that
// is less. `with_head`: its logits are computed.
TokenFlops FlopsOfToken(const ModelSpec& spec, int position, bool with_head);

// The same summed over positions first .. first + count - 1, the head for `num_logits` of them.
TokenFlops FlopsOfTokens(const ModelSpec& spec, int first, int count, int num_logits);

// Elements of weights that one step reads at least once: everything but the embedding (unless it is
// the head too) and the experts that no token chose. `activated_experts`: distinct experts chosen,
// per layer (ignored in dense layers).
int64_t WeightElementsRead(const ModelSpec& spec, std::span<const int> activated_experts);

// Distinct experts among E that `tokens` tokens choose, each k of them at random:
// E (1 - (1 - k / E)^tokens).
double ExpectedActivatedExperts(const MoeSpec& moe, int tokens);

}  // namespace convene::model
