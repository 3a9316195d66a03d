// DBRX (Databricks, 2024; transformers models/dbrx): LayerNorm, one tensor for q, k and v, and one
// per expert matrix for all experts.
#include "model/decoder_config.h"
#include "model/decoder_tensors.h"
#include "model/family.h"
#include "model/rope_config.h"

namespace convene::model {
namespace {

MoeSpec ReadExperts(ConfigFields& config, int num_layers) {
  ConfigFields ffn = config.Object("ffn_config");
  CheckActivation(config, ffn.Object("ffn_act_fn").Text("name", "silu"));
  MoeSpec moe = {
      .num_experts = ffn.Integer("moe_num_experts", 4, kExpertCount),
      .top_k = ffn.Integer("moe_top_k", 1, kExpertCount),
      .intermediate_size = ffn.Integer("ffn_hidden_size", 3584, kIntermediate),
  };
  constexpr std::string_view kNorm = "moe_normalize_expert_weights";
  if (!ffn.IsNull(kNorm)) {
    moe.router_norm_p = static_cast<float>(ffn.Number(kNorm, 1, {1e-2, 1e2}));
    moe.router_norm = moe.router_norm_p == 1 ? RouterNorm::kSum : RouterNorm::kPNorm;
  }
  CheckExperts(config, moe, num_layers);
  return moe;
}

// Rows [first_row, first_row + rows) of the stored matrix; transposed: rows and columns swap roles.
struct Block {
  int64_t rows = 0;
  int64_t cols = 0;
  int64_t first_row = 0;
  bool transposed = false;
};

class DbrxBinder {
 public:
  DbrxBinder(ModelSpec& spec, int layer)
      : spec_(spec), layer_(layer), prefix_(fmt::format("transformer.blocks.{}.", layer)) {}

  void Bind() {
    const AttentionSpec& attention = spec_.layers[layer_].attention;
    const MoeSpec& moe = *spec_.layers[layer_].moe;
    const int64_t hidden = spec_.hidden_size;
    const int64_t query_dim = attention.query_dim();
    const int64_t kv_dim = attention.kv_dim();

    Vector(TensorRole::kAttentionNorm, "norm_attn_norm.norm_1.weight");
    const std::vector<int64_t> fused_shape = {query_dim + 2 * kv_dim, hidden};
    const char* fused = "norm_attn_norm.attn.Wqkv.weight";
    Part(TensorRole::kQuery, -1, fused, fused_shape, {query_dim, hidden, 0});
    Part(TensorRole::kKey, -1, fused, fused_shape, {kv_dim, hidden, query_dim});
    Part(TensorRole::kValue, -1, fused, fused_shape, {kv_dim, hidden, query_dim + kv_dim});
    BindMatrix(spec_, TensorRole::kAttentionOutput, layer_, -1,
               prefix_ + "norm_attn_norm.attn.out_proj.weight", hidden, query_dim);

    Vector(TensorRole::kFfnNorm, "norm_attn_norm.norm_2.weight");
    BindMatrix(spec_, TensorRole::kRouter, layer_, -1, prefix_ + "ffn.router.layer.weight",
               moe.num_experts, hidden);
    const int64_t width = moe.intermediate_size;
    const std::vector<int64_t> stacked_shape = {moe.num_experts * width, hidden};
    for (int expert = 0; expert < moe.num_experts; ++expert) {
      const int64_t first_row = expert * width;
      Part(TensorRole::kExpertGate, expert, "ffn.experts.mlp.w1", stacked_shape,
           {width, hidden, first_row});
      Part(TensorRole::kExpertUp, expert, "ffn.experts.mlp.v1", stacked_shape,
           {width, hidden, first_row});
      Part(TensorRole::kExpertDown, expert, "ffn.experts.mlp.w2", stacked_shape,
           {hidden, width, first_row, true});
    }
  }

 private:
  void Vector(TensorRole role, std::string_view name) {
    BindVector(spec_, role, layer_, fmt::format("{}{}", prefix_, name), spec_.hidden_size);
  }
  void Part(TensorRole role, int expert, std::string_view name,
            const std::vector<int64_t>& stored_shape, const Block& block) {
    spec_.tensors.push_back({.role = role,
                             .layer = layer_,
                             .expert = expert,
                             .name = fmt::format("{}{}", prefix_, name),
                             .stored_shape = stored_shape,
                             .rows = block.rows,
                             .cols = block.cols,
                             .first_row = block.first_row,
                             .transposed = block.transposed});
  }

  ModelSpec& spec_;
  int layer_;
  std::string prefix_;
};

void BindDbrxTensors(ModelSpec& spec) {
  BindMatrix(spec, TensorRole::kEmbedding, -1, -1, "transformer.wte.weight", spec.vocab_size,
             spec.hidden_size);
  for (int layer = 0; layer < spec.num_layers(); ++layer) DbrxBinder(spec, layer).Bind();
  BindVector(spec, TensorRole::kFinalNorm, -1, "transformer.norm_f.weight", spec.hidden_size);
  BindMatrix(spec, TensorRole::kHead, -1, -1, "lm_head.weight", spec.vocab_size, spec.hidden_size);
}

}  // namespace

Result<ModelSpec> ReadDbrx(ConfigFields& config) {
  ModelSpec spec;
  spec.norm = {.kind = NormKind::kLayer, .epsilon = 1e-5f};
  spec.vocab_size = config.Integer("vocab_size", 32000, kVocabulary);
  spec.hidden_size = config.Integer({"d_model", "hidden_size"}, 2048, kHidden);
  const int num_layers = config.Integer({"n_layers", "num_hidden_layers"}, 24, kLayers);
  if (config.Boolean("tie_word_embeddings", false)) {
    config.Fail("tie_word_embeddings is true, which dbrx does not have");
  }

  ConfigFields attn = config.Object("attn_config");
  AttentionSpec attention;
  attention.num_heads = config.Integer({"n_heads", "num_attention_heads"}, 16, kHeads);
  attention.num_kv_heads = attn.Integer("kv_n_heads", 1, kHeads);
  attention.head_dim = spec.hidden_size / attention.num_heads;
  attention.clip_qkv = attn.OptionalNumber("clip_qkv", kClip);
  FinishAttention(config, attention);

  const int max_positions =
      config.Integer({"max_seq_len", "max_position_embeddings"}, 2048, kPositions);
  // The published checkpoints have their base in attn_config only (docs/families.md).
  spec.rope = ReadRope(config, {.theta = attn.Number("rope_theta", 10000, kRopeTheta),
                                .head_dim = attention.head_dim,
                                .max_positions = max_positions});
  spec.max_positions = DeclaredContext(spec.rope, max_positions);

  const MoeSpec moe = ReadExperts(config, num_layers);
  if (!config.ok()) return config.error();
  spec.layers.assign(num_layers, {.attention = attention, .moe = moe});
  BindDbrxTensors(spec);
  return spec;
}

}  // namespace convene::model
