#include "model/family.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>

namespace convene::model {
namespace {

using nlohmann::json;

Result<ModelSpec> Read(std::string_view text) { return ModelSpecFromConfig(json::parse(text)); }

std::string ErrorOf(std::string_view text) {
  const Result<ModelSpec> spec = Read(text);
  return spec ? "" : spec.error().message;
}

const TensorBinding* Find(const ModelSpec& spec, TensorRole role, int layer = -1, int expert = -1) {
  const auto found =
      std::find_if(spec.tensors.begin(), spec.tensors.end(), [&](const TensorBinding& tensor) {
        return tensor.role == role && tensor.layer == layer && tensor.expert == expert;
      });
  return found == spec.tensors.end() ? nullptr : &*found;
}

using Shape = std::vector<int64_t>;

TEST(Family, ReadsMixtral8x7B) {
  const auto spec = Read(R"({"model_type": "mixtral", "hidden_act": "silu", "hidden_size": 4096,
      "intermediate_size": 14336, "max_position_embeddings": 32768, "num_attention_heads": 32,
      "num_experts_per_tok": 2, "num_hidden_layers": 32, "num_key_value_heads": 8,
      "num_local_experts": 8, "rms_norm_eps": 1e-05, "rope_theta": 1000000.0,
      "sliding_window": null, "tie_word_embeddings": false, "vocab_size": 32000})");
  ASSERT_TRUE(spec) << spec.error().message;
  EXPECT_EQ(spec->family, "mixtral");
  EXPECT_EQ(spec->num_layers(), 32);
  EXPECT_EQ(spec->max_positions, 32768);
  EXPECT_EQ(spec->rope.theta, 1e6);
  EXPECT_EQ(spec->norm.kind, NormKind::kRms);
  EXPECT_EQ(spec->norm.epsilon, 1e-5f);
  const AttentionSpec& attention = spec->layers[31].attention;
  EXPECT_EQ(attention.head_dim, 128);
  EXPECT_EQ(attention.num_kv_heads, 8);
  EXPECT_EQ(attention.window, 0);
  EXPECT_FLOAT_EQ(attention.scale, 0.08838834764f);
  EXPECT_EQ(spec->layers[0].moe->router_norm, RouterNorm::kSum);
  EXPECT_EQ(spec->layers[0].moe->shared_intermediate_size, 0);

  // Embedding, head, final norm; per layer two norms, four projections, a router, 8 x 3 matrices.
  EXPECT_EQ(spec->tensors.size(), 3u + 32 * (2 + 4 + 1 + 24));
  const TensorBinding* down = Find(*spec, TensorRole::kExpertDown, 31, 7);
  ASSERT_NE(down, nullptr);
  EXPECT_EQ(down->name, "model.layers.31.block_sparse_moe.experts.7.w2.weight");
  EXPECT_EQ(down->stored_shape, (Shape{4096, 14336}));
  EXPECT_EQ(Find(*spec, TensorRole::kExpertGate, 0, 0)->name,
            "model.layers.0.block_sparse_moe.experts.0.w1.weight");
  EXPECT_EQ(Find(*spec, TensorRole::kExpertUp, 0, 0)->name,
            "model.layers.0.block_sparse_moe.experts.0.w3.weight");
  EXPECT_EQ(Find(*spec, TensorRole::kRouter, 0)->name,
            "model.layers.0.block_sparse_moe.gate.weight");
  EXPECT_EQ(Find(*spec, TensorRole::kKey, 0)->stored_shape, (Shape{1024, 4096}));
}

TEST(Family, MixtralHasAWindowWhereTheConfigurationSaysSo) {
  const auto spec = Read(R"({"model_type": "mixtral", "sliding_window": 4096})");
  ASSERT_TRUE(spec);
  for (const LayerSpec& layer : spec->layers) EXPECT_EQ(layer.attention.window, 4096);
}

TEST(Family, ReadsQwen3Moe30B) {
  const auto spec = Read(R"({"model_type": "qwen3_moe", "attention_bias": false,
      "decoder_sparse_step": 1, "head_dim": 128, "hidden_size": 2048, "intermediate_size": 6144,
      "max_position_embeddings": 40960, "mlp_only_layers": [], "moe_intermediate_size": 768,
      "norm_topk_prob": true, "num_attention_heads": 32, "num_experts": 128,
      "num_experts_per_tok": 8, "num_hidden_layers": 48, "num_key_value_heads": 4,
      "rms_norm_eps": 1e-06, "rope_scaling": null, "rope_theta": 1000000.0,
      "sliding_window": null, "use_sliding_window": false, "vocab_size": 151936})");
  ASSERT_TRUE(spec) << spec.error().message;
  const AttentionSpec& attention = spec->layers[0].attention;
  EXPECT_EQ(attention.head_dim, 128);  // not hidden / heads = 64
  EXPECT_EQ(attention.query_dim(), 4096);
  EXPECT_EQ(attention.qk_norm, QkNorm::kPerHead);
  EXPECT_FALSE(attention.qkv_bias);
  EXPECT_EQ(spec->layers[47].moe->router_norm, RouterNorm::kSum);
  EXPECT_EQ(spec->layers[47].moe->num_experts, 128);
  EXPECT_EQ(Find(*spec, TensorRole::kQueryNorm, 3)->stored_shape, Shape{128});
  EXPECT_EQ(Find(*spec, TensorRole::kAttentionOutput, 3)->stored_shape, (Shape{2048, 4096}));
  EXPECT_EQ(Find(*spec, TensorRole::kExpertUp, 3, 5)->name,
            "model.layers.3.mlp.experts.5.up_proj.weight");
  EXPECT_EQ(Find(*spec, TensorRole::kQueryBias, 3), nullptr);
}

TEST(Family, Qwen3MoeAcceptsTheSpellingsOfTransformers5) {
  const auto spec = Read(R"({"model_type": "qwen3_moe", "num_local_experts": 16,
      "attention_bias": true, "use_sliding_window": true, "sliding_window": 64,
      "rope_parameters": {"rope_type": "default", "rope_theta": 5e6}})");
  ASSERT_TRUE(spec) << spec.error().message;
  EXPECT_EQ(spec->layers[0].moe->num_experts, 16);
  EXPECT_EQ(spec->layers[0].moe->router_norm, RouterNorm::kNone);
  EXPECT_EQ(spec->layers[23].attention.window, 64);
  EXPECT_EQ(spec->rope.theta, 5e6);
  EXPECT_NE(Find(*spec, TensorRole::kAttentionOutputBias, 0), nullptr);
  EXPECT_EQ(Find(*spec, TensorRole::kKeyBias, 0)->stored_shape, Shape{256});
}

TEST(Family, ListsNameLayersThatAreThere) {
  EXPECT_EQ(ErrorOf(R"({"model_type": "qwen3_moe", "num_hidden_layers": 6,
      "mlp_only_layers": [3, 99]})"),
            "mlp_only_layers[1] is 99, but must be an integer from 0 to 5");
  // Fewer layers of a model keep those of its entries that they have.
  nlohmann::json config = {{"num_hidden_layers", 6}, {"mlp_only_layers", {0, 3, 5}}};
  SetNumLayers(config, 4);
  EXPECT_EQ(config["mlp_only_layers"], (nlohmann::json{0, 3}));
}

// transformers takes a window of 0, and fails at the first token of a layer that has one.
TEST(Family, AWindowOfNothingIsRefusedWhereALayerHasOne) {
  for (const char* used :
       {R"("model_type": "mixtral")", R"("model_type": "qwen3_moe", "use_sliding_window": true)",
        R"("model_type": "qwen2_moe", "use_sliding_window": true)", R"("model_type": "gpt_oss")"}) {
    const std::string config = fmt::format(R"({{{}, "sliding_window": 0}})", used);
    EXPECT_NE(ErrorOf(config).find("null stands for no window"), std::string::npos) << used;
  }
  for (const char* unused :
       {R"("model_type": "olmoe")", R"("model_type": "qwen3_moe")", R"("model_type": "qwen2_moe")",
        R"("model_type": "qwen2_moe", "use_sliding_window": true, "max_window_layers": 0)",
        R"("model_type": "qwen2_moe", "use_sliding_window": true, "num_hidden_layers": 1,
           "layer_types": ["full_attention"])",
        R"("model_type": "gpt_oss", "num_hidden_layers": 2,
           "layer_types": ["full_attention", "full_attention"])"}) {
    const auto spec = Read(fmt::format(R"({{{}, "sliding_window": 0}})", unused));
    EXPECT_TRUE(spec) << unused << ": " << spec.error().message;
  }
}

TEST(Family, QwenMixesSparseAndDenseLayers) {
  const auto spec = Read(R"({"model_type": "qwen3_moe", "num_hidden_layers": 6,
      "decoder_sparse_step": 2, "mlp_only_layers": [3]})");
  ASSERT_TRUE(spec) << spec.error().message;
  for (const int layer : {0, 2, 3, 4}) {
    EXPECT_FALSE(spec->layers[layer].moe) << layer;
    EXPECT_EQ(spec->layers[layer].dense_intermediate_size, 6144);
    EXPECT_EQ(Find(*spec, TensorRole::kRouter, layer), nullptr);
  }
  for (const int layer : {1, 5}) EXPECT_TRUE(spec->layers[layer].moe) << layer;
  EXPECT_EQ(Find(*spec, TensorRole::kDenseDown, 3)->name, "model.layers.3.mlp.down_proj.weight");
  EXPECT_EQ(Find(*spec, TensorRole::kDenseDown, 3)->stored_shape, (Shape{2048, 6144}));

  const auto dense = Read(R"({"model_type": "qwen3_moe", "num_experts": 0})");
  ASSERT_TRUE(dense) << dense.error().message;
  EXPECT_FALSE(dense->layers[0].moe);
}

TEST(Family, ReadsQwen2Moe57B) {
  const auto spec = Read(R"({"model_type": "qwen2_moe", "decoder_sparse_step": 1,
      "hidden_act": "silu", "hidden_size": 3584, "intermediate_size": 18944,
      "max_position_embeddings": 131072, "max_window_layers": 28, "moe_intermediate_size": 2560,
      "norm_topk_prob": false, "num_attention_heads": 28, "num_experts": 64,
      "num_experts_per_tok": 8, "num_hidden_layers": 28, "num_key_value_heads": 4,
      "rms_norm_eps": 1e-06, "rope_theta": 1000000.0, "shared_expert_intermediate_size": 20480,
      "sliding_window": 131072, "use_sliding_window": false, "vocab_size": 151936})");
  ASSERT_TRUE(spec) << spec.error().message;
  const LayerSpec& layer = spec->layers[27];
  EXPECT_TRUE(layer.attention.qkv_bias);
  EXPECT_FALSE(layer.attention.output_bias);
  EXPECT_EQ(layer.attention.window, 0);
  EXPECT_EQ(layer.moe->router_norm, RouterNorm::kNone);
  EXPECT_EQ(layer.moe->shared_intermediate_size, 20480);
  EXPECT_TRUE(layer.moe->shared_expert_gate);
  EXPECT_EQ(Find(*spec, TensorRole::kSharedDown, 27)->name,
            "model.layers.27.mlp.shared_expert.down_proj.weight");
  EXPECT_EQ(Find(*spec, TensorRole::kSharedExpertGate, 27)->stored_shape, (Shape{1, 3584}));
  EXPECT_EQ(Find(*spec, TensorRole::kQueryBias, 27)->stored_shape, Shape{3584});
}

TEST(Family, Qwen2MoeWindowsAlternateBelowMaxWindowLayers) {
  const auto spec = Read(R"({"model_type": "qwen2_moe", "num_hidden_layers": 6,
      "use_sliding_window": true, "sliding_window": 32, "max_window_layers": 3})");
  ASSERT_TRUE(spec);
  const int expected[] = {32, 0, 32, 0, 0, 0};
  for (int layer = 0; layer < 6; ++layer) {
    EXPECT_EQ(spec->layers[layer].attention.window, expected[layer]) << layer;
  }
}

TEST(Family, Qwen2MoeLayerTypesNameTheWindows) {
  const auto spec = Read(R"({"model_type": "qwen2_moe", "num_hidden_layers": 2,
      "use_sliding_window": true, "sliding_window": 32,
      "layer_types": ["full_attention", "sliding_attention"]})");
  ASSERT_TRUE(spec);
  EXPECT_EQ(spec->layers[0].attention.window, 0);
  EXPECT_EQ(spec->layers[1].attention.window, 32);

  EXPECT_NE(ErrorOf(R"({"model_type": "qwen2_moe", "num_hidden_layers": 3,
                        "layer_types": ["full_attention"]})"),
            "");
  EXPECT_NE(ErrorOf(R"({"model_type": "qwen2_moe", "num_hidden_layers": 1,
                        "layer_types": ["chunked_attention"]})"),
            "");
  EXPECT_NE(ErrorOf(R"({"model_type": "qwen2_moe", "num_hidden_layers": 1,
                        "layer_types": ["sliding_attention"]})"),
            "");
}

TEST(Family, Qwen2MoeIgnoresTheWindowThatIsSwitchedOff) {
  // transformers 5 writes 0 here.
  EXPECT_TRUE(Read(R"({"model_type": "qwen2_moe", "use_sliding_window": false,
                       "sliding_window": 0})"));
}

TEST(Family, ReadsOlmoe1B7B) {
  const auto spec = Read(R"({"model_type": "olmoe", "attention_bias": false, "clip_qkv": null,
      "hidden_size": 2048, "intermediate_size": 1024, "max_position_embeddings": 4096,
      "norm_topk_prob": false, "num_attention_heads": 16, "num_experts": 64,
      "num_experts_per_tok": 8, "num_hidden_layers": 16, "num_key_value_heads": 16,
      "rms_norm_eps": 1e-05, "rope_scaling": null, "rope_theta": 10000.0, "vocab_size": 50304})");
  ASSERT_TRUE(spec) << spec.error().message;
  const LayerSpec& layer = spec->layers[15];
  EXPECT_EQ(layer.attention.qk_norm, QkNorm::kWholeProjection);
  EXPECT_FALSE(layer.attention.clip_qkv);
  EXPECT_EQ(layer.moe->router_norm, RouterNorm::kNone);
  EXPECT_EQ(layer.moe->intermediate_size, 1024);
  EXPECT_EQ(Find(*spec, TensorRole::kQueryNorm, 0)->stored_shape, Shape{2048});
}

TEST(Family, OlmoeClipsAndSharesKeys) {
  const auto spec = Read(R"({"model_type": "olmoe", "clip_qkv": 8.0, "num_key_value_heads": 4,
                             "tie_word_embeddings": true})");
  ASSERT_TRUE(spec) << spec.error().message;
  EXPECT_EQ(spec->layers[0].attention.clip_qkv, 8.0f);
  EXPECT_EQ(Find(*spec, TensorRole::kKeyNorm, 0)->stored_shape, Shape{512});
  EXPECT_EQ(Find(*spec, TensorRole::kHead), nullptr);
  EXPECT_NE(ErrorOf(R"({"model_type": "olmoe", "head_dim": 64})"), "");
}

TEST(Family, ReadsDbrx) {
  const auto spec = Read(R"({"model_type": "dbrx", "attn_config": {"clip_qkv": 8,
      "kv_n_heads": 8, "model_type": "", "rope_theta": 500000}, "d_model": 6144,
      "ffn_config": {"ffn_hidden_size": 10752, "model_type": "", "moe_num_experts": 16,
      "moe_top_k": 4}, "max_seq_len": 32768, "n_heads": 48, "n_layers": 40,
      "tie_word_embeddings": false, "vocab_size": 100352})");
  ASSERT_TRUE(spec) << spec.error().message;
  EXPECT_EQ(spec->norm.kind, NormKind::kLayer);
  EXPECT_EQ(spec->rope.theta, 5e5);
  EXPECT_EQ(spec->max_positions, 32768);
  const LayerSpec& layer = spec->layers[39];
  EXPECT_EQ(layer.attention.clip_qkv, 8.0f);
  EXPECT_EQ(layer.attention.head_dim, 128);
  EXPECT_EQ(layer.moe->router_norm, RouterNorm::kSum);
  EXPECT_EQ(layer.moe->top_k, 4);

  const TensorBinding* value = Find(*spec, TensorRole::kValue, 39);
  EXPECT_EQ(value->name, "transformer.blocks.39.norm_attn_norm.attn.Wqkv.weight");
  EXPECT_EQ(value->stored_shape, (Shape{8192, 6144}));
  EXPECT_EQ(value->first_row, 7168);
  const TensorBinding* down = Find(*spec, TensorRole::kExpertDown, 39, 3);
  EXPECT_EQ(down->name, "transformer.blocks.39.ffn.experts.mlp.w2");
  EXPECT_EQ(down->stored_shape, (Shape{16 * 10752, 6144}));
  EXPECT_TRUE(down->transposed);
  EXPECT_EQ(down->rows, 6144);
  EXPECT_EQ(down->cols, 10752);
  EXPECT_EQ(down->first_row, 3 * 10752);
}

TEST(Family, DbrxNormalisesItsRouterAsConfigured) {
  const auto router_norm = [](const char* value) {
    const auto spec = Read(fmt::format(
        R"({{"model_type": "dbrx", "ffn_config": {{"moe_normalize_expert_weights": {}}}}})",
        value));
    EXPECT_TRUE(spec) << spec.error().message;
    return std::pair(spec->layers[0].moe->router_norm, spec->layers[0].moe->router_norm_p);
  };
  EXPECT_EQ(router_norm("null").first, RouterNorm::kNone);
  EXPECT_EQ(router_norm("1").first, RouterNorm::kSum);
  EXPECT_EQ(router_norm("2.5"), std::pair(RouterNorm::kPNorm, 2.5f));
}

TEST(Family, DbrxPrefersRopeParametersOverItsAttentionConfig) {
  const auto theta = [](std::string_view fields) {
    return Read(fmt::format(R"({{"model_type": "dbrx"{}}})", fields))->rope.theta;
  };
  EXPECT_EQ(theta(""), 1e4);
  EXPECT_EQ(theta(R"(, "attn_config": {"rope_theta": 5e5})"), 5e5);
  EXPECT_EQ(theta(R"(, "rope_theta": 7e5, "attn_config": {"rope_theta": 5e5})"), 7e5);
  EXPECT_EQ(theta(R"(, "rope_theta": 7e5, "rope_parameters": {"rope_theta": 9e5})"), 9e5);
}

TEST(Family, RefusesTiedDbrx) {
  EXPECT_NE(ErrorOf(R"({"model_type": "dbrx", "tie_word_embeddings": true})"), "");
}

// Every element of every stored tensor belongs to exactly one logical matrix.
void ExpectPartition(std::vector<const TensorBinding*> blocks) {
  const auto place = [](const TensorBinding* block) {
    return std::pair(block->first_row, block->row_offset);
  };
  std::sort(blocks.begin(), blocks.end(),
            [&](const auto* a, const auto* b) { return place(a) < place(b); });
  const Shape& shape = blocks[0]->stored_shape;
  const int64_t cols = shape.size() == 1 ? 1 : shape.back();
  int64_t rows = 1;
  for (const int64_t dimension : shape) rows *= dimension;
  rows /= cols;
  int64_t next_row = 0;
  int next_offset = 0;
  for (const TensorBinding* block : blocks) {
    EXPECT_EQ(place(block), std::pair(next_row, next_offset)) << block->name;
    EXPECT_EQ(block->stored_shape, shape) << block->name;
    const int64_t outputs = block->rows * block->row_step;
    EXPECT_EQ(block->transposed ? outputs : block->cols, cols) << block->name;
    if (++next_offset < block->row_step) continue;
    next_offset = 0;
    next_row += block->transposed ? block->cols : outputs;
  }
  EXPECT_EQ(next_row, rows) << blocks[0]->name;
}

TEST(Family, BindingsPartitionTheStoredTensors) {
  for (const std::string_view name : FamilyNames()) {
    for (const char* quantised :
         {"", R"(, "quantization_config": {"quant_method": "mxfp4"})",
          R"(, "quantization_config": {"quant_method": "fp8", "weight_block_size": [128, 128]})"}) {
      // deepseek_v2 has no default of it.
      const auto spec = Read(
          fmt::format(R"({{"model_type": "{}", "num_experts_per_tok": 2{}}})", name, quantised));
      if (!spec && *quantised != '\0') continue;
      ASSERT_TRUE(spec) << spec.error().message;
      EXPECT_EQ(spec->family, name);
      std::map<std::string, std::vector<const TensorBinding*>> stored;
      for (const TensorBinding& tensor : spec->tensors) stored[tensor.name].push_back(&tensor);
      for (const auto& [tensor_name, blocks] : stored) ExpectPartition(blocks);
    }
  }
}

TEST(Family, AnUnknownModelTypeListsTheKnownOnes) {
  EXPECT_EQ(ErrorOf(R"({"model_type": "gpt2"})"),
            "model_type \"gpt2\" is not supported; the supported model types are mixtral, "
            "qwen2_moe, qwen3_moe, olmoe, dbrx, granitemoe, gpt_oss, deepseek_v2, deepseek_v3, "
            "switch_transformers");
  EXPECT_NE(ErrorOf("{}").find("qwen3_moe"), std::string::npos);
  EXPECT_NE(ErrorOf(R"({"model_type": 7})"), "");
  EXPECT_NE(ErrorOf("[]"), "");
}

TEST(Family, RefusesAbsurdValues) {
  EXPECT_EQ(ErrorOf(R"({"model_type": "mixtral", "num_attention_heads": 0})"),
            "num_attention_heads is 0, but must be an integer from 1 to 4096");
  EXPECT_EQ(ErrorOf(R"({"model_type": "olmoe", "num_experts": 1099511627776})"),
            "num_experts is 1099511627776, but must be an integer from 1 to 65536");
  for (const char* field :
       {"\"num_hidden_layers\": 1000000000", "\"hidden_size\": -4", "\"vocab_size\": 0",
        "\"head_dim\": 7", "\"head_dim\": 1000000", "\"num_key_value_heads\": 5",
        "\"num_experts_per_tok\": 9", "\"num_experts_per_tok\": 0",
        "\"num_local_experts\": 60000, \"num_hidden_layers\": 4000", "\"rms_norm_eps\": -1",
        "\"rms_norm_eps\": \"1e-5\"", "\"intermediate_size\": 4294967296",
        "\"max_position_embeddings\": 0", "\"hidden_size\": 16", "\"hidden_act\": \"gelu\"",
        "\"tie_word_embeddings\": 1", "\"sliding_window\": 0"}) {
    EXPECT_NE(ErrorOf(fmt::format(R"({{"model_type": "mixtral", {}}})", field)), "") << field;
  }
}

TEST(Family, ReadsGranite3_1_1B) {
  const auto spec = Read(R"({"model_type": "granitemoe", "vocab_size": 49155, "hidden_size": 1024,
      "intermediate_size": 512, "num_hidden_layers": 24, "num_attention_heads": 16,
      "num_key_value_heads": 8, "max_position_embeddings": 131072, "rms_norm_eps": 1e-06,
      "rope_theta": 1500000, "hidden_act": "silu", "attention_bias": false,
      "attention_multiplier": 0.015625, "embedding_multiplier": 12.0, "residual_multiplier": 0.22,
      "logits_scaling": 6.0, "num_local_experts": 32, "num_experts_per_tok": 8,
      "tie_word_embeddings": true})");
  ASSERT_TRUE(spec) << spec.error().message;
  EXPECT_EQ(spec->embedding_scale, 12.0f);
  EXPECT_EQ(spec->residual_scale, 0.22f);
  EXPECT_FLOAT_EQ(spec->logits_scale, 1.0f / 6);
  EXPECT_EQ(spec->layers[0].attention.scale, 0.015625f);
  EXPECT_EQ(spec->layers[0].moe->router_norm, RouterNorm::kSum);
  const TensorBinding* up = Find(*spec, TensorRole::kExpertUp, 23, 31);
  ASSERT_NE(up, nullptr);
  EXPECT_EQ(up->name, "model.layers.23.block_sparse_moe.input_linear.weight");
  EXPECT_EQ(up->stored_shape, (Shape{32, 1024, 1024}));
  EXPECT_EQ(up->first_row, 31 * 1024 + 512);
  EXPECT_EQ(up->rows, 512);
  EXPECT_EQ(Find(*spec, TensorRole::kExpertDown, 0, 1)->first_row, 1024);
  EXPECT_EQ(Find(*spec, TensorRole::kRouter, 0)->name,
            "model.layers.0.block_sparse_moe.router.layer.weight");

  const auto plain = Read(R"({"model_type": "granitemoe"})");
  EXPECT_EQ(plain->layers[0].attention.scale, 1.0f) << "absent it is not head_dim^-1/2";
  EXPECT_EQ(plain->layers[0].attention.num_kv_heads, 32);
}

constexpr std::string_view kGptOss20b = R"({"model_type": "gpt_oss", "attention_bias": true,
    "experts_per_token": 4, "head_dim": 64, "hidden_act": "silu", "hidden_size": 2880,
    "initial_context_length": 4096, "intermediate_size": 2880, "layer_types":
    ["sliding_attention", "full_attention", "sliding_attention", "full_attention"],
    "max_position_embeddings": 131072, "num_attention_heads": 64, "num_experts_per_tok": 4,
    "num_hidden_layers": 4, "num_key_value_heads": 8, "num_local_experts": 32, "rms_norm_eps": 1e-05,
    "rope_scaling": {"beta_fast": 32.0, "beta_slow": 1.0, "factor": 32.0,
    "original_max_position_embeddings": 4096, "rope_type": "yarn", "truncate": false},
    "rope_theta": 150000, "sliding_window": 128, "swiglu_limit": 7.0, "vocab_size": 201088)";

TEST(Family, ReadsGptOss20bInBf16) {
  const auto spec = Read(std::string(kGptOss20b) + "}");
  ASSERT_TRUE(spec) << spec.error().message;
  EXPECT_EQ(spec->layers[0].attention.window, 128);
  EXPECT_EQ(spec->layers[1].attention.window, 0);
  EXPECT_TRUE(spec->layers[0].attention.sinks);
  EXPECT_TRUE(spec->layers[0].attention.qkv_bias);
  EXPECT_TRUE(spec->layers[0].attention.output_bias);
  EXPECT_EQ(spec->layers[0].attention.query_dim(), 4096);
  EXPECT_EQ(spec->rope.scaling, RopeScaling::kYarn);
  EXPECT_FALSE(spec->rope.truncate);
  EXPECT_EQ(spec->max_positions, 131072);
  const MoeSpec& moe = *spec->layers[0].moe;
  EXPECT_EQ(moe.activation.kind, Activation::kClampedSwiglu);
  EXPECT_EQ(moe.activation.limit, 7.0f);
  EXPECT_EQ(moe.activation.alpha, 1.702f);
  EXPECT_TRUE(moe.expert_bias);
  EXPECT_EQ(Find(*spec, TensorRole::kSinks, 3)->stored_shape, (Shape{64}));
  EXPECT_EQ(Find(*spec, TensorRole::kRouterBias, 3)->name, "model.layers.3.mlp.router.bias");
  const TensorBinding* up = Find(*spec, TensorRole::kExpertUp, 0, 2);
  EXPECT_EQ(up->stored_shape, (Shape{32, 2880, 5760}));
  EXPECT_TRUE(up->transposed);
  EXPECT_EQ(up->first_row, 2 * 2880);
  EXPECT_EQ(up->row_step, 2);
  EXPECT_EQ(up->row_offset, 1);
  EXPECT_EQ(up->storage, Storage::kPlain);
  const TensorBinding* bias = Find(*spec, TensorRole::kExpertUpBias, 0, 2);
  EXPECT_EQ(bias->stored_shape, (Shape{32, 5760}));
  EXPECT_EQ(bias->rows, 2880);
}

TEST(Family, ReadsGptOss20bInMxfp4) {
  const auto spec =
      Read(std::string(kGptOss20b) + R"(, "quantization_config": {"quant_method": "mxfp4"}})");
  ASSERT_TRUE(spec) << spec.error().message;
  const TensorBinding* gate = Find(*spec, TensorRole::kExpertGate, 0, 2);
  EXPECT_EQ(gate->name, "model.layers.0.mlp.experts.gate_up_proj");
  EXPECT_EQ(gate->stored_shape, (Shape{32, 5760, 2880}));
  EXPECT_FALSE(gate->transposed);
  EXPECT_EQ(gate->first_row, 2 * 5760);
  EXPECT_EQ(gate->row_step, 2);
  EXPECT_EQ(gate->storage, Storage::kMxfp4);
  EXPECT_EQ(Find(*spec, TensorRole::kExpertDown, 0, 2)->row_step, 1);
  EXPECT_EQ(Find(*spec, TensorRole::kQuery, 0)->storage, Storage::kPlain);
}

TEST(Family, FillsInWhatGptOssLeavesOut) {
  const auto spec = Read(R"({"model_type": "gpt_oss", "num_hidden_layers": 3})");
  ASSERT_TRUE(spec) << spec.error().message;
  EXPECT_EQ(spec->layers[0].attention.window, 128);
  EXPECT_EQ(spec->layers[1].attention.window, 0);
  EXPECT_EQ(spec->layers[2].attention.window, 128);
  EXPECT_EQ(spec->layers[0].attention.head_dim, 64);
  EXPECT_EQ(spec->rope.scaling, RopeScaling::kYarn);
  EXPECT_NEAR(spec->rope.attention_factor, 1.3466, 1e-4);
  EXPECT_EQ(spec->rope.theta, 150000);
  EXPECT_NE(ErrorOf(R"({"model_type": "gpt_oss", "layer_types": ["full_attention"]})"), "");
  EXPECT_NE(ErrorOf(R"({"model_type": "gpt_oss", "layer_types": []})"), "");
  EXPECT_NE(ErrorOf(R"({"model_type": "gpt_oss", "intermediate_size": 100,
                        "quantization_config": {"quant_method": "mxfp4"}})"),
            "");
}

TEST(Family, ReadsFp8BlocksOfTheFamiliesThatHaveThem) {
  const auto spec = Read(R"({"model_type": "qwen3_moe", "quantization_config":
      {"quant_method": "fp8", "fmt": "e4m3", "weight_block_size": [128, 128]}})");
  ASSERT_TRUE(spec) << spec.error().message;
  EXPECT_EQ(Find(*spec, TensorRole::kExpertUp, 0, 0)->storage, Storage::kFp8Block);
  EXPECT_EQ(Find(*spec, TensorRole::kAttentionOutput, 0)->storage, Storage::kFp8Block);
  EXPECT_EQ(Find(*spec, TensorRole::kRouter, 0)->storage, Storage::kPlain);
  EXPECT_EQ(Find(*spec, TensorRole::kHead)->storage, Storage::kPlain);
}

TEST(Family, RefusesOtherQuantisedCheckpoints) {
  EXPECT_EQ(ErrorOf(R"({"model_type": "mixtral", "quantization_config":
                        {"quant_method": "fp8", "weight_block_size": [128, 128]}})"),
            "FP8 checkpoints of model_type mixtral are not supported; use the F32, F16 or BF16 "
            "version of this model");
  EXPECT_EQ(ErrorOf(R"({"model_type": "qwen3_moe", "quantization_config":
                        {"quant_method": "fp8"}})"),
            "FP8 (\"e4m3\") with blocks of [] is not supported; it must be e4m3 with "
            "weight_block_size [128, 128]");
  EXPECT_EQ(ErrorOf(R"({"model_type": "qwen3_moe", "quantization_config":
                        {"quant_method": "gptq"}})"),
            "quantised checkpoints (quant_method \"gptq\") are not supported; use the F32, F16 or "
            "BF16 version of this model");
}

}  // namespace
}  // namespace convene::model
