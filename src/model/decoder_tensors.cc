#include "model/decoder_tensors.h"

#include <fmt/format.h>

#include <utility>

namespace convene::model {
namespace {

// Binds the tensors of one layer under its prefix "model.layers.N.".
class LayerBinder {
 public:
  LayerBinder(ModelSpec& spec, int layer, const DecoderNames& names)
      : spec_(spec),
        layer_(layer),
        names_(names),
        prefix_(fmt::format("model.layers.{}.", layer)) {}

  void Bind() {
    const LayerSpec& layer = spec_.layers[layer_];
    Vector(TensorRole::kAttentionNorm, "input_layernorm.weight", spec_.hidden_size);
    BindAttention(layer.attention);
    Vector(TensorRole::kFfnNorm, "post_attention_layernorm.weight", spec_.hidden_size);
    if (layer.moe) {
      BindExperts(*layer.moe);
    } else {
      BindFfn({TensorRole::kDenseGate, TensorRole::kDenseUp, TensorRole::kDenseDown}, -1,
              std::string(names_.block), layer.dense_intermediate_size);
    }
  }

 private:
  struct FfnRoles {
    TensorRole gate, up, down;
  };

  void BindAttention(const AttentionSpec& attention) {
    const int query_dim = attention.query_dim();
    const int kv_dim = attention.kv_dim();
    Matrix(TensorRole::kQuery, "self_attn.q_proj.weight", query_dim, spec_.hidden_size,
           names_.storage);
    Matrix(TensorRole::kKey, "self_attn.k_proj.weight", kv_dim, spec_.hidden_size, names_.storage);
    Matrix(TensorRole::kValue, "self_attn.v_proj.weight", kv_dim, spec_.hidden_size,
           names_.storage);
    if (attention.qkv_bias) {
      Vector(TensorRole::kQueryBias, "self_attn.q_proj.bias", query_dim);
      Vector(TensorRole::kKeyBias, "self_attn.k_proj.bias", kv_dim);
      Vector(TensorRole::kValueBias, "self_attn.v_proj.bias", kv_dim);
    }
    if (attention.qk_norm != QkNorm::kNone) {
      const bool per_head = attention.qk_norm == QkNorm::kPerHead;
      Vector(TensorRole::kQueryNorm, "self_attn.q_norm.weight",
             per_head ? attention.head_dim : query_dim);
      Vector(TensorRole::kKeyNorm, "self_attn.k_norm.weight",
             per_head ? attention.head_dim : kv_dim);
    }
    Matrix(TensorRole::kAttentionOutput, "self_attn.o_proj.weight", spec_.hidden_size, query_dim,
           names_.storage);
    if (attention.output_bias) {
      Vector(TensorRole::kAttentionOutputBias, "self_attn.o_proj.bias", spec_.hidden_size);
    }
    if (attention.sinks) Vector(TensorRole::kSinks, "self_attn.sinks", attention.num_heads);
  }

  void BindExperts(const MoeSpec& moe) {
    const std::string block(names_.block);
    const std::string router = fmt::format("{}.{}", block, names_.router);
    Matrix(TensorRole::kRouter, router + ".weight", moe.num_experts, spec_.hidden_size);
    if (moe.router_bias) Vector(TensorRole::kRouterBias, router + ".bias", moe.num_experts);
    if (moe.correction_bias) {
      Vector(TensorRole::kCorrectionBias, router + ".e_score_correction_bias", moe.num_experts);
    }
    if (names_.bind_experts) {
      names_.bind_experts(spec_, layer_, fmt::format("{}{}.", prefix_, block));
    } else {
      for (int expert = 0; expert < moe.num_experts; ++expert) {
        BindFfn({TensorRole::kExpertGate, TensorRole::kExpertUp, TensorRole::kExpertDown}, expert,
                fmt::format("{}.experts.{}", block, expert), moe.intermediate_size);
      }
    }
    if (moe.shared_intermediate_size > 0) {
      BindFfn({TensorRole::kSharedGate, TensorRole::kSharedUp, TensorRole::kSharedDown}, -1,
              fmt::format("{}.{}", block, names_.shared), moe.shared_intermediate_size);
    }
    if (moe.shared_expert_gate) {
      Matrix(TensorRole::kSharedExpertGate, block + ".shared_expert_gate.weight", 1,
             spec_.hidden_size);
    }
  }

  void BindFfn(FfnRoles roles, int expert, const std::string& block, int intermediate_size) {
    const auto name = [&](std::string_view matrix) {
      return fmt::format("{}{}.{}.weight", prefix_, block, matrix);
    };
    const int hidden = spec_.hidden_size;
    const auto bind = [&](TensorRole role, std::string_view matrix, int64_t rows, int64_t cols) {
      BindMatrix(spec_, role, layer_, expert, name(matrix), rows, cols, names_.storage);
    };
    bind(roles.gate, names_.gate, intermediate_size, hidden);
    bind(roles.up, names_.up, intermediate_size, hidden);
    bind(roles.down, names_.down, hidden, intermediate_size);
  }

  void Matrix(TensorRole role, std::string_view name, int64_t rows, int64_t cols,
              Storage storage = Storage::kPlain) {
    BindMatrix(spec_, role, layer_, -1, fmt::format("{}{}", prefix_, name), rows, cols, storage);
  }
  void Vector(TensorRole role, std::string_view name, int64_t size) {
    BindVector(spec_, role, layer_, fmt::format("{}{}", prefix_, name), size);
  }

  ModelSpec& spec_;
  int layer_;
  const DecoderNames& names_;
  std::string prefix_;
};

}  // namespace

void BindMatrix(ModelSpec& spec, TensorRole role, int layer, int expert, std::string name,
                int64_t rows, int64_t cols, Storage storage) {
  spec.tensors.push_back({.role = role,
                          .layer = layer,
                          .expert = expert,
                          .name = std::move(name),
                          .stored_shape = {rows, cols},
                          .rows = rows,
                          .cols = cols,
                          .storage = storage});
}

void BindVector(ModelSpec& spec, TensorRole role, int layer, std::string name, int64_t size) {
  spec.tensors.push_back({.role = role,
                          .layer = layer,
                          .name = std::move(name),
                          .stored_shape = {size},
                          .rows = size,
                          .cols = 1});
}

void BindDecoder(ModelSpec& spec, const DecoderNames& names) {
  BindMatrix(spec, TensorRole::kEmbedding, -1, -1, "model.embed_tokens.weight", spec.vocab_size,
             spec.hidden_size);
  for (int layer = 0; layer < spec.num_layers(); ++layer) {
    LayerBinder(spec, layer, names).Bind();
  }
  BindVector(spec, TensorRole::kFinalNorm, -1, "model.norm.weight", spec.hidden_size);
  if (!spec.tied_embeddings) {
    BindMatrix(spec, TensorRole::kHead, -1, -1, "lm_head.weight", spec.vocab_size,
               spec.hidden_size);
  }
}

}  // namespace convene::model
