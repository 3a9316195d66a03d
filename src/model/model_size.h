// How big a model is and how much work a token takes, counted from its ModelSpec alone. What a
// kernel really executes or a format really occupies is counted where it happens (runtime/,
// weights/).
//
// Notation: h hidden, q = heads * head_dim, g = kv_heads * head_dim, E experts, k of them per
// token, i their width, s the shared expert's, f a dense layer's, V vocabulary.
#pragma once

#include <array>
#include <cstdint>
#include <string_view>

#include "model/model_spec.h"

namespace convene::model {

enum class TensorKind {
  kEmbedding,
  kAttention,  // projections and their biases, sinks, a stack's relative bias
  kCrossAttention,
  kNorms,
  kRouter,
  kExperts,
  kSharedExperts,  // with their gate
  kDenseFfn,
  kHead,
};
inline constexpr int kNumTensorKinds = 9;

std::string_view Name(TensorKind kind);  // "shared experts"
TensorKind KindOf(TensorRole role);

// Stored elements by kind, indexed by TensorKind; a tied head counts as the embedding alone.
using ParameterCounts = std::array<int64_t, kNumTensorKinds>;
ParameterCounts CountParameters(const ModelSpec& spec);

int64_t TotalParameters(const ModelSpec& spec);

// Those that one token's way meets: all but the E - k experts that its router leaves out in every
// layer. Embedding and head count whole; published figures often leave the embedding out. Of an
// encoder-decoder: an input token's way through the encoder and a generated one's through the
// decoder.
int64_t ActivatedParameters(const ModelSpec& spec);

// Of the encoder alone, or nothing; an embedding that both stacks share counts with the decoder.
struct StackParameters {
  int64_t total = 0;
  int64_t activated = 0;
};
StackParameters EncoderParameters(const ModelSpec& spec);

// Elements of keys and values that the decoder's cross attention keeps in the cache of one token of
// the input: 2 g per layer.
int64_t CrossElementsPerInputToken(const ModelSpec& spec);

// Floating-point operations for one token, a multiply-add counting as two. Norms, RoPE, activations
// and softmax (below one percent) are left out. A block without a gate has 4 in place of 6.
struct TokenFlops {
  double attention_projections = 0;  // per layer 2 h (q + 2 g) + 2 q h; with a latent its own
  double attention_scores = 0;       // per layer 4 q * keys it sees: q.k, then probabilities * v;
                                     // with a latent of expanded keys and values
  double cross_attention = 0;        // per layer 2 h q + 2 q h + 4 q * tokens of the input
  double router = 0;                 // per sparse layer 2 h E
  double experts = 0;                // per sparse layer 6 h i k
  double shared_experts = 0;         // per sparse layer 6 h s, and 2 h for the gate
  double dense_ffn = 0;              // per dense layer 6 h f
  double head = 0;                   // 2 h V, for a token whose logits are computed

  double total() const {
    return attention_projections + attention_scores + cross_attention + router + experts +
           shared_experts + dense_ffn + head;
  }
};

// For the decoder's token at `position` (from 0), which sees position + 1 keys, or a layer's window
// if that is less, and `input_length` of the encoder's output. `with_head`: its logits are
// computed.
TokenFlops FlopsOfToken(const ModelSpec& spec, int position, bool with_head, int input_length = 0);

// The same summed over positions first .. first + count - 1, the head for `num_logits` of them.
TokenFlops FlopsOfTokens(const ModelSpec& spec, int first, int count, int num_logits,
                         int input_length = 0);

// What attention_scores is of a generated token where a latent is attended to as it lies in the
// cache, in the absorbed form: per layer 2 heads (2 kv_rank + rope_dim) * keys; of other layers the
// same as ever.
double AbsorbedScoreFlops(const ModelSpec& spec, int position);

// Of the encoder over an input of `length` tokens, with the keys and values (2 h 2 g per token and
// layer, as cross_attention) that the decoder's layers make of its output.
TokenFlops FlopsOfInput(const ModelSpec& spec, int length);

}  // namespace convene::model
