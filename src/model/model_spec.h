// ModelSpec: an architecture as data: the shape of every operator and the name of every tensor.
// It holds no weights and no decision about where anything runs.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "model/rope.h"

namespace convene::model {

enum class NormKind { kRms, kLayer };  // RMSNorm; LayerNorm (mean subtracted), weight only

struct NormSpec {
  NormKind kind = NormKind::kRms;
  float epsilon = 1e-5f;
};

// RMSNorm of queries and keys before RoPE: over each head (weights (head_dim)), or over the whole
// projection (weights (num_heads * head_dim) and (num_kv_heads * head_dim)).
enum class QkNorm { kNone, kPerHead, kWholeProjection };

struct AttentionSpec {
  int num_heads = 0;
  int num_kv_heads = 0;
  int head_dim = 0;
  bool qkv_bias = false;
  bool output_bias = false;
  QkNorm qk_norm = QkNorm::kNone;
  std::optional<float> clip_qkv;  // q, k, v clamped to [-clip, clip], after qk_norm and before RoPE
  int window = 0;      // a query at p sees keys max(0, p - window + 1) .. p; 0: all keys up to p
  float scale = 0.0f;  // of the scores: head_dim^-1/2

  int query_dim() const { return num_heads * head_dim; }
  int kv_dim() const { return num_kv_heads * head_dim; }
};

// Router weights are softmax over all experts, the top k of them taken, then divided by ...
enum class GateNorm {
  kNone,  // ... nothing
  kSum,   // ... their sum
  kPNorm  // ... their p-norm (dbrx: moe_normalize_expert_weights = p)
};

// Gated experts: down(silu(gate(x)) * up(x)).
struct MoeSpec {
  int num_experts = 0;
  int top_k = 0;
  int intermediate_size = 0;
  GateNorm gate_norm = GateNorm::kNone;
  float gate_norm_p = 1.0f;
  int shared_intermediate_size = 0;  // 0: no shared expert
  bool shared_expert_gate = false;   // shared expert scaled by sigmoid(gate . x)
};

struct LayerSpec {
  AttentionSpec attention;
  std::optional<MoeSpec> moe;
  int dense_intermediate_size = 0;  // where there is no moe
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
  kAttentionOutput,      // (hidden, query_dim)
  kAttentionOutputBias,  // (hidden)
  kFfnNorm,
  kDenseGate,  // (dense_intermediate, hidden)
  kDenseUp,
  kDenseDown,   // (hidden, dense_intermediate)
  kRouter,      // (num_experts, hidden)
  kExpertGate,  // (intermediate, hidden), per expert
  kExpertUp,
  kExpertDown,  // (hidden, intermediate), per expert
  kSharedGate,  // (shared_intermediate, hidden)
  kSharedUp,
  kSharedDown,
  kSharedExpertGate,  // (1, hidden)
};

// Where one logical matrix (rows x cols, row-major "out x in"; vectors are rows x 1) lies in the
// checkpoint: a block of rows of the stored tensor seen as a matrix (its last dimension the
// columns).
struct TensorBinding {
  TensorRole role;
  int layer = -1;                     // -1: not in a layer
  int expert = -1;                    // -1: not an expert's
  std::string name;                   // of the stored tensor
  std::vector<int64_t> stored_shape;  // the whole stored tensor
  int64_t rows = 0;
  int64_t cols = 0;
  int64_t first_row = 0;    // of the block in the stored matrix
  bool transposed = false;  // the stored block is (cols x rows)
};

struct ModelSpec {
  std::string family;  // the registry's name, e.g. "mixtral"
  int vocab_size = 0;
  int hidden_size = 0;
  int max_positions = 0;  // the longest context the checkpoint declares, in tokens
  NormSpec norm;
  bool tied_embeddings = false;
  RopeSpec rope;
  std::vector<LayerSpec> layers;
  std::vector<TensorBinding> tensors;

  int num_layers() const { return static_cast<int>(layers.size()); }
};

}  // namespace convene::model
