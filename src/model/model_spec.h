// ModelSpec: an architecture as data: the shape of every operator and the name of every tensor.
// It holds no weights and no decision about where anything runs.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "model/rope.h"
#include "tensor/operator_kinds.h"

namespace convene::model {

using tensor::GroupScore;
using tensor::NormKind;
using tensor::QkNorm;
using tensor::RouterNorm;
using tensor::RouterScore;

struct NormSpec {
  NormKind kind = NormKind::kRms;
  float epsilon = 1e-5f;
};

// Multi-head latent attention (DeepSeek-V2, 2024, section 2.1): keys and values of all heads are
// made from one latent per token, and the cache holds that latent and one rotated key part for all
// heads, kv_rank + rope_dim elements. A head's query and key are nope_dim elements without
// position, then rope_dim rotated ones.
struct LatentSpec {
  int query_rank = 0;  // of the queries' latent; 0: projected at once
  int kv_rank = 0;
  int nope_dim = 0;
  int rope_dim = 0;
  bool interleaved_rope = true;  // pairs that turn together are neighbours, not halves apart
  float norm_epsilon = 1e-6f;    // of the latents' RMSNorms

  int key_dim() const { return kv_rank + rope_dim; }  // of what is cached
};

struct AttentionSpec {
  int num_heads = 0;
  int num_kv_heads = 0;  // with a latent: as many as heads
  int head_dim = 0;      // of queries and keys; with a latent nope_dim + rope_dim
  int value_dim = 0;     // of values
  std::optional<LatentSpec> latent = {};
  bool qkv_bias = false;  // with a latent: of the projections to the latents
  bool output_bias = false;
  QkNorm qk_norm = QkNorm::kNone;
  std::optional<float> clip_qkv =
      {};              // q, k, v clamped to [-clip, clip], after qk_norm and before RoPE
  int window = 0;      // a query at p sees keys max(0, p - window + 1) .. p; 0: all keys up to p
  float scale = 0.0f;  // of the scores: head_dim^-1/2
  // A learned score per head of a key that has no value: it only takes its share of the softmax.
  bool sinks = false;
  bool causal = true;          // false: every query sees all keys of its sequence
  bool relative_bias = false;  // scores += the stack's table by distance (T5), instead of RoPE

  int query_dim() const { return num_heads * head_dim; }
  int kv_dim() const { return num_kv_heads * head_dim; }  // of keys
  int value_width() const { return num_kv_heads * value_dim; }
  int output_dim() const { return num_heads * value_dim; }  // what the output projection reads
};

enum class Activation {
  kSiluMul,        // down(silu(gate x) * (up x))
  kClampedSwiglu,  // down(g sigmoid(alpha g) (u + 1)), g = min(gate x, limit), u = up x in +-limit
  kRelu,           // down(relu(up x)): no gate
};

// What stands between the matrices of a feed-forward block, dense, shared or an expert.
struct ActivationSpec {
  Activation kind = Activation::kSiluMul;
  float limit = 0;  // kClampedSwiglu
  float alpha = 0;  // kClampedSwiglu

  bool gated() const { return kind != Activation::kRelu; }
};

struct MoeSpec {
  int num_experts = 0;
  int top_k = 0;
  int intermediate_size = 0;
  ActivationSpec activation = {};
  bool expert_bias = false;  // of gate, up and down
  bool router_bias = false;  // of the logits
  RouterScore score = RouterScore::kSoftmax;
  bool correction_bias = false;  // per expert, added to the scores for choosing only
  int num_expert_groups = 1;  // of consecutive experts; the top_expert_groups best of them compete
  int top_expert_groups = 1;
  GroupScore group_score = GroupScore::kMax;
  RouterNorm router_norm = RouterNorm::kNone;
  float router_norm_p = 1.0f;
  float routed_scale = 1.0f;         // of the experts' sum, after router_norm
  int shared_intermediate_size = 0;  // 0: no shared expert
  bool shared_expert_gate = false;   // shared expert scaled by sigmoid(gate . x)
};

struct LayerSpec {
  AttentionSpec attention;
  std::optional<AttentionSpec> cross_attention = {};  // to the encoder's output
  std::optional<MoeSpec> moe;
  int dense_intermediate_size = 0;  // where there is no moe
  ActivationSpec dense_activation = {};
};

// The table of scores by distance that all layers of a stack share (Raffel et al., "T5", 2020).
struct RelativeBiasSpec {
  int num_buckets = 0;
  int max_distance = 0;  // from here on all distances are one bucket
};

enum class TensorRole {
  kEmbedding,  // (vocab, hidden)
  kFinalNorm,  // (hidden)
  kHead,       // (vocab, hidden); absent when tied
  kAttentionNorm,
  kQuery,  // (query_dim, hidden)
  kKey,    // (kv_dim, hidden)
  kValue,  // (kv_dim, hidden)
  kQueryBias,
  kKeyBias,
  kValueBias,
  kQueryNorm,
  kKeyNorm,
  kQueryDown,            // (query_rank, hidden); with a latent, as are the next
  kQueryDownBias,        // (query_rank)
  kQueryDownNorm,        // (query_rank)
  kQueryUp,              // (query_dim, query_rank)
  kKvDown,               // (kv_rank + rope_dim, hidden)
  kKvDownBias,           // (kv_rank + rope_dim)
  kKvDownNorm,           // (kv_rank)
  kKvUp,                 // (num_heads * (nope_dim + value_dim), kv_rank)
  kSinks,                // (num_heads)
  kAttentionOutput,      // (hidden, output_dim)
  kAttentionOutputBias,  // (hidden)
  kRelativeBias,         // (num_buckets, num_heads), of a stack
  kCrossNorm,            // (hidden); of the attention to the encoder, as are the next
  kCrossQuery,           // (query_dim, hidden)
  kCrossKey,             // (kv_dim, hidden)
  kCrossValue,           // (kv_dim, hidden)
  kCrossOutput,          // (hidden, output_dim)
  kFfnNorm,
  kDenseGate,  // (dense_intermediate, hidden)
  kDenseUp,
  kDenseDown,       // (hidden, dense_intermediate)
  kRouter,          // (num_experts, hidden)
  kRouterBias,      // (num_experts)
  kCorrectionBias,  // (num_experts)
  kExpertGate,      // (intermediate, hidden), per expert
  kExpertUp,
  kExpertDown,      // (hidden, intermediate), per expert
  kExpertGateBias,  // (intermediate), per expert
  kExpertUpBias,
  kExpertDownBias,  // (hidden), per expert
  kSharedGate,      // (shared_intermediate, hidden)
  kSharedUp,
  kSharedDown,
  kSharedExpertGate,  // (1, hidden)
};

// How a tensor's elements are stored.
enum class Storage {
  kPlain,     // F32, F16 or BF16
  kFp8Block,  // F8_E4M3; tensor `name`_scale_inv has a float for each 128 x 128 elements
  kMxfp4,     // `name`_blocks: halves of bytes, low one first, are E2M1 numbers; `name`_scales: a
              // power of two (E8M0) for each 32 of them along the columns
};

// Where one logical matrix (rows x cols, row-major "out x in"; vectors are rows x 1) lies in the
// checkpoint: a block of rows of the stored tensor seen as a matrix (its last dimension the
// columns).
struct TensorBinding {
  TensorRole role;
  bool encoder = false;               // of the encoder's stack
  int layer = -1;                     // -1: not in a layer
  int expert = -1;                    // -1: not an expert's
  std::string name;                   // of the stored tensor
  std::string fallback_name = {};     // of the one that is meant where that is not stored, or empty
  std::vector<int64_t> stored_shape;  // the whole stored tensor
  int64_t rows = 0;
  int64_t cols = 0;
  int64_t first_row = 0;    // of the block in the stored matrix
  bool transposed = false;  // the stored block is (cols x rows)
  // Several matrices may take turns: logical row i is row row_offset + i * row_step of the block,
  // which has rows * row_step of them.
  int row_step = 1;
  int row_offset = 0;
  Storage storage = Storage::kPlain;
};

struct ModelSpec {
  std::string family;  // the registry's name, e.g. "mixtral"
  int vocab_size = 0;
  int hidden_size = 0;
  int max_positions = 0;  // the longest context the checkpoint declares, in tokens
  NormSpec norm;
  bool tied_embeddings = false;
  float embedding_scale = 1.0f;  // of the embeddings, before the first layer
  float residual_scale = 1.0f;   // of what attention and feed-forward add to the residual stream
  float logits_scale = 1.0f;
  RopeSpec rope;
  std::optional<RelativeBiasSpec> relative_bias;
  std::vector<LayerSpec> layers;          // of the decoder
  std::vector<LayerSpec> encoder_layers;  // of the encoder, where there is one
  int decoder_start_token = -1;           // what an answer begins with, where there is an encoder
  std::vector<TensorBinding> tensors;
  // Tensors whose names begin so may be in a checkpoint, and are not part of the model.
  std::vector<std::string> ignored_prefixes;

  int num_layers() const { return static_cast<int>(layers.size()); }  // of the decoder
  bool has_encoder() const { return !encoder_layers.empty(); }
};

}  // namespace convene::model
