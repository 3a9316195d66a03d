#include "model/deepseek_config.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "model/family.h"

namespace convene::model {
namespace {

using nlohmann::json;

Result<ModelSpec> ReadDeepseek(std::string_view text) {
  return ModelSpecFromConfig(json::parse(text));
}

// Of a configuration of two layers with further fields.
std::string Config(std::string_view family, std::string_view fields) {
  const char* needed = family == "deepseek_v2" ? R"("num_experts_per_tok": 6, )" : "";
  return fmt::format(R"({{"model_type": "{}", "num_hidden_layers": 2, {}{}}})", family, needed,
                     fields);
}
std::string ErrorOfDeepseek(std::string_view family, std::string_view fields) {
  // A field given twice: the later one counts.
  const Result<ModelSpec> spec = ReadDeepseek(Config(family, fields));
  return spec ? "" : spec.error().message;
}

const TensorBinding* FindInDeepseek(const ModelSpec& spec, TensorRole role, int layer,
                                    int expert = -1) {
  const auto found =
      std::find_if(spec.tensors.begin(), spec.tensors.end(), [&](const TensorBinding& tensor) {
        return tensor.role == role && tensor.layer == layer && tensor.expert == expert;
      });
  return found == spec.tensors.end() ? nullptr : &*found;
}

using Shape = std::vector<int64_t>;

constexpr const char* kDeepseekV2Lite = R"({"model_type": "deepseek_v2", "attention_bias": false,
    "aux_loss_alpha": 0.001, "first_k_dense_replace": 1, "hidden_act": "silu", "hidden_size": 2048,
    "intermediate_size": 10944, "kv_lora_rank": 512, "max_position_embeddings": 163840,
    "moe_intermediate_size": 1408, "moe_layer_freq": 1, "n_group": 1, "n_routed_experts": 64,
    "n_shared_experts": 2, "norm_topk_prob": false, "num_attention_heads": 16,
    "num_experts_per_tok": 6, "num_hidden_layers": 27, "num_key_value_heads": 16,
    "q_lora_rank": null, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "rms_norm_eps": 1e-06,
    "rope_scaling": {"beta_fast": 32.0, "beta_slow": 1.0, "factor": 40.0, "mscale": 0.707,
    "mscale_all_dim": 0.707, "original_max_position_embeddings": 4096, "rope_theta": 10000,
    "type": "yarn"}, "rope_theta": 10000, "routed_scaling_factor": 1.0, "scoring_func": "softmax",
    "topk_group": 1, "topk_method": "greedy", "v_head_dim": 128, "vocab_size": 102400})";

constexpr const char* kV3 = R"({"model_type": "deepseek_v3", "attention_bias": false,
    "first_k_dense_replace": 3, "hidden_act": "silu", "hidden_size": 7168,
    "intermediate_size": 18432, "kv_lora_rank": 512, "max_position_embeddings": 163840,
    "moe_intermediate_size": 2048, "moe_layer_freq": 1, "n_group": 8, "n_routed_experts": 256,
    "n_shared_experts": 1, "norm_topk_prob": true, "num_attention_heads": 128,
    "num_experts_per_tok": 8, "num_hidden_layers": 61, "num_key_value_heads": 128,
    "num_nextn_predict_layers": 1, "q_lora_rank": 1536, "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64, "quantization_config": {"activation_scheme": "dynamic", "fmt": "e4m3",
    "quant_method": "fp8", "weight_block_size": [128, 128]}, "rms_norm_eps": 1e-06,
    "rope_scaling": {"beta_fast": 32, "beta_slow": 1, "factor": 40, "mscale": 1.0,
    "mscale_all_dim": 1.0, "original_max_position_embeddings": 4096, "type": "yarn"},
    "rope_theta": 10000, "routed_scaling_factor": 2.5, "scoring_func": "sigmoid",
    "topk_group": 4, "topk_method": "noaux_tc", "v_head_dim": 128, "vocab_size": 129280})";

TEST(Deepseek, ReadsV2Lite) {
  const auto spec = ReadDeepseek(kDeepseekV2Lite);
  ASSERT_TRUE(spec) << spec.error().message;
  ASSERT_EQ(spec->num_layers(), 27);
  EXPECT_EQ(spec->max_positions, 163840);
  const AttentionSpec& attention = spec->layers[26].attention;
  ASSERT_TRUE(attention.latent);
  EXPECT_EQ(attention.latent->query_rank, 0);
  EXPECT_EQ(attention.latent->kv_rank, 512);
  EXPECT_EQ(attention.latent->key_dim(), 576);
  EXPECT_EQ(attention.latent->norm_epsilon, 1e-6f);
  EXPECT_TRUE(attention.latent->interleaved_rope);
  EXPECT_EQ(attention.head_dim, 192);
  EXPECT_EQ(attention.value_dim, 128);
  EXPECT_EQ(attention.output_dim(), 16 * 128);
  // docs/families.md: 192^-0.5 times the square of 0.0707 ln 40 + 1.
  EXPECT_NEAR(attention.scale, std::pow(192.0, -0.5) * 1.2608 * 1.2608, 1e-5);
  EXPECT_EQ(spec->rope.rotary_dim, 64);
  EXPECT_EQ(spec->rope.scaling, RopeScaling::kYarn);
  EXPECT_DOUBLE_EQ(spec->rope.attention_factor, 1);

  EXPECT_FALSE(spec->layers[0].moe);
  EXPECT_EQ(spec->layers[0].dense_intermediate_size, 10944);
  const MoeSpec& moe = *spec->layers[1].moe;
  EXPECT_EQ(moe.num_experts, 64);
  EXPECT_EQ(moe.top_k, 6);
  EXPECT_EQ(moe.intermediate_size, 1408);
  EXPECT_EQ(moe.shared_intermediate_size, 2816);
  EXPECT_FALSE(moe.shared_expert_gate);
  EXPECT_EQ(moe.score, RouterScore::kSoftmax);
  EXPECT_EQ(moe.router_norm, RouterNorm::kNone);
  EXPECT_EQ(moe.num_expert_groups, 1);
  EXPECT_EQ(moe.routed_scale, 1);
  EXPECT_FALSE(moe.correction_bias);

  EXPECT_EQ(FindInDeepseek(*spec, TensorRole::kQueryDown, 0), nullptr);
  EXPECT_EQ(FindInDeepseek(*spec, TensorRole::kQuery, 0)->stored_shape, (Shape{16 * 192, 2048}));
  const TensorBinding* down = FindInDeepseek(*spec, TensorRole::kKvDown, 3);
  EXPECT_EQ(down->name, "model.layers.3.self_attn.kv_a_proj_with_mqa.weight");
  EXPECT_EQ(down->stored_shape, (Shape{576, 2048}));
  EXPECT_EQ(FindInDeepseek(*spec, TensorRole::kKvUp, 3)->stored_shape, (Shape{16 * 256, 512}));
  EXPECT_EQ(FindInDeepseek(*spec, TensorRole::kAttentionOutput, 3)->stored_shape,
            (Shape{2048, 2048}));
  EXPECT_EQ(FindInDeepseek(*spec, TensorRole::kSharedUp, 3)->name,
            "model.layers.3.mlp.shared_experts.up_proj.weight");
}

TEST(Deepseek, ReadsV3InFp8) {
  const auto spec = ReadDeepseek(kV3);
  ASSERT_TRUE(spec) << spec.error().message;
  const LayerSpec& layer = spec->layers[3];
  EXPECT_EQ(layer.attention.latent->query_rank, 1536);
  EXPECT_NEAR(layer.attention.scale, std::pow(192.0, -0.5) * 1.3689 * 1.3689, 1e-5);
  EXPECT_FALSE(spec->layers[2].moe);
  ASSERT_TRUE(layer.moe);
  EXPECT_EQ(layer.moe->score, RouterScore::kSigmoid);
  EXPECT_TRUE(layer.moe->correction_bias);
  EXPECT_EQ(layer.moe->group_score, GroupScore::kTopTwoSum);
  EXPECT_EQ(layer.moe->num_expert_groups, 8);
  EXPECT_EQ(layer.moe->top_expert_groups, 4);
  EXPECT_EQ(layer.moe->router_norm, RouterNorm::kSum);
  EXPECT_EQ(layer.moe->routed_scale, 2.5f);
  EXPECT_EQ(layer.moe->shared_intermediate_size, 2048);

  EXPECT_EQ(FindInDeepseek(*spec, TensorRole::kQueryUp, 60)->stored_shape,
            (Shape{128 * 192, 1536}));
  EXPECT_EQ(FindInDeepseek(*spec, TensorRole::kCorrectionBias, 3)->name,
            "model.layers.3.mlp.gate.e_score_correction_bias");
  for (const TensorRole role : {TensorRole::kKvDown, TensorRole::kKvUp, TensorRole::kQueryUp,
                                TensorRole::kAttentionOutput, TensorRole::kSharedDown}) {
    EXPECT_EQ(FindInDeepseek(*spec, role, 3)->storage, Storage::kFp8Block)
        << static_cast<int>(role);
  }
  EXPECT_EQ(FindInDeepseek(*spec, TensorRole::kExpertDown, 3, 255)->storage, Storage::kFp8Block);
  EXPECT_EQ(FindInDeepseek(*spec, TensorRole::kRouter, 3)->storage, Storage::kPlain);
  EXPECT_EQ(FindInDeepseek(*spec, TensorRole::kHead, -1)->storage, Storage::kPlain);
  EXPECT_EQ(spec->ignored_prefixes, std::vector<std::string>{"model.layers.61."});
}

TEST(Deepseek, FillsInWhatV3LeavesOut) {
  const auto given = ReadDeepseek(kV3);
  const auto absent = ReadDeepseek(R"({"model_type": "deepseek_v3"})");
  ASSERT_TRUE(absent) << absent.error().message;
  EXPECT_EQ(absent->num_layers(), given->num_layers());
  EXPECT_EQ(absent->vocab_size, given->vocab_size);
  EXPECT_EQ(absent->tensors.size(), given->tensors.size());
  EXPECT_EQ(absent->layers[3].moe->routed_scale, 2.5f);
  EXPECT_EQ(absent->layers[3].moe->router_norm, RouterNorm::kSum);
  EXPECT_EQ(absent->layers[3].attention.latent->query_rank, 1536);
  EXPECT_EQ(absent->max_positions, 4096);
  EXPECT_EQ(absent->rope.scaling, RopeScaling::kNone);
  EXPECT_FLOAT_EQ(absent->layers[3].attention.scale, 1 / std::sqrt(192.0f));
}

TEST(Deepseek, AnAbsentQueryRankIsNotNull) {
  EXPECT_EQ(ReadDeepseek(Config("deepseek_v2", R"("n_group": 1)"))
                ->layers[0]
                .attention.latent->query_rank,
            1536);
  EXPECT_EQ(ReadDeepseek(Config("deepseek_v2", R"("q_lora_rank": null)"))
                ->layers[0]
                .attention.latent->query_rank,
            0);
}

TEST(Deepseek, V2DividesBySumInsteadOfScaling) {
  const auto spec = ReadDeepseek(Config("deepseek_v2", R"("norm_topk_prob": true,
                                                  "routed_scaling_factor": 16)"));
  ASSERT_TRUE(spec) << spec.error().message;
  EXPECT_EQ(spec->layers[0].moe->router_norm, RouterNorm::kSum);
  EXPECT_EQ(spec->layers[0].moe->routed_scale, 1);
  const auto scaled = ReadDeepseek(Config("deepseek_v2", R"("routed_scaling_factor": 16)"));
  EXPECT_EQ(scaled->layers[0].moe->router_norm, RouterNorm::kNone);
  EXPECT_EQ(scaled->layers[0].moe->routed_scale, 16);
}

TEST(Deepseek, V2LimitsGroupsOnlyWhereTheMethodSaysSo) {
  const auto greedy = ReadDeepseek(Config("deepseek_v2", R"("n_group": 8, "topk_group": 3)"));
  ASSERT_TRUE(greedy) << greedy.error().message;
  EXPECT_EQ(greedy->layers[0].moe->num_expert_groups, 1);
  const auto limited = ReadDeepseek(Config(
      "deepseek_v2", R"("n_group": 8, "topk_group": 3, "topk_method": "group_limited_greedy")"));
  ASSERT_TRUE(limited) << limited.error().message;
  EXPECT_EQ(limited->layers[0].moe->num_expert_groups, 8);
  EXPECT_EQ(limited->layers[0].moe->top_expert_groups, 3);
  EXPECT_EQ(limited->layers[0].moe->group_score, GroupScore::kMax);
}

TEST(Deepseek, LayersAreSparseByFrequencyAfterTheDenseOnes) {
  const auto spec = ReadDeepseek(R"({"model_type": "deepseek_v3", "num_hidden_layers": 6,
                             "first_k_dense_replace": 1, "moe_layer_freq": 2})");
  ASSERT_TRUE(spec) << spec.error().message;
  std::vector<bool> sparse;
  for (const LayerSpec& layer : spec->layers) sparse.push_back(layer.moe.has_value());
  EXPECT_EQ(sparse, (std::vector<bool>{false, false, true, false, true, false}));
}

TEST(Deepseek, MayHaveNoSharedExpertsAndHalvesThatTurn) {
  const auto spec = ReadDeepseek(Config("deepseek_v3", R"("n_shared_experts": null,
      "first_k_dense_replace": 0, "rope_interleave": false, "attention_bias": true)"));
  ASSERT_TRUE(spec) << spec.error().message;
  EXPECT_EQ(spec->layers[0].moe->shared_intermediate_size, 0);
  EXPECT_EQ(FindInDeepseek(*spec, TensorRole::kSharedUp, 0), nullptr);
  EXPECT_FALSE(spec->layers[0].attention.latent->interleaved_rope);
  EXPECT_EQ(FindInDeepseek(*spec, TensorRole::kKvDownBias, 0)->stored_shape, Shape{576});
  EXPECT_EQ(FindInDeepseek(*spec, TensorRole::kQueryDownBias, 0)->stored_shape, Shape{1536});
  EXPECT_NE(FindInDeepseek(*spec, TensorRole::kAttentionOutputBias, 0), nullptr);
}

TEST(Deepseek, V2HasNoFieldForHalvesThatTurn) {
  const auto spec = ReadDeepseek(Config("deepseek_v2", R"("rope_interleave": false)"));
  ASSERT_TRUE(spec) << spec.error().message;
  EXPECT_TRUE(spec->layers[0].attention.latent->interleaved_rope);
}

TEST(Deepseek, ANullNumberOfRoutedExpertsIsNone) {
  for (const char* family : {"deepseek_v2", "deepseek_v3"}) {
    for (const char* experts : {"null", "0"}) {
      const auto spec = ReadDeepseek(Config(
          family, fmt::format(R"("first_k_dense_replace": 0, "n_routed_experts": {})", experts)));
      ASSERT_TRUE(spec) << family << ": " << spec.error().message;
      for (const LayerSpec& layer : spec->layers) EXPECT_FALSE(layer.moe) << family << experts;
    }
  }
  const auto alias = ReadDeepseek(
      Config("deepseek_v3",
             R"("first_k_dense_replace": 0, "n_routed_experts": null, "num_local_experts": 16)"));
  EXPECT_EQ(alias->layers[0].moe->num_experts, 16);
}

TEST(Deepseek, ScoresGrowWithTheMscaleOfAllDimensionsWhateverTheScaling) {
  const std::vector<std::pair<const char*, const char*>> kinds = {
      {"linear", ""},
      {"dynamic", ""},
      {"yarn", ""},
      {"llama3", R"(, "low_freq_factor": 1, "high_freq_factor": 4)"}};
  for (const auto& [kind, more] : kinds) {
    const auto spec = ReadDeepseek(
        Config("deepseek_v3", fmt::format(R"("rope_scaling": {{"type": "{}", "factor": 40,
                                   "mscale": 1.0, "mscale_all_dim": 1.0{}}})",
                                          kind, more)));
    ASSERT_TRUE(spec) << spec.error().message;
    EXPECT_NEAR(spec->layers[0].attention.scale, std::pow(192.0, -0.5) * 1.3689 * 1.3689, 1e-5)
        << kind;
  }
  const auto unscaled = ReadDeepseek(Config("deepseek_v3", R"("rope_scaling": {"type": "default",
                                                            "factor": 40, "mscale_all_dim": 1.0})"));
  EXPECT_FLOAT_EQ(unscaled->layers[0].attention.scale, 1 / std::sqrt(192.0f));
}

TEST(Deepseek, SaysWhatIsWrong) {
  EXPECT_EQ(ErrorOfDeepseek("deepseek_v3", R"("qk_rope_head_dim": 7)"),
            "qk_rope_head_dim 7 must be even");
  EXPECT_EQ(ErrorOfDeepseek("deepseek_v3", R"("num_key_value_heads": 8)"),
            "num_key_value_heads 8 must be num_attention_heads 128");
  EXPECT_EQ(ErrorOfDeepseek("deepseek_v3", R"("n_routed_experts": 100)"),
            "100 experts cannot be divided into 8 groups");
  EXPECT_EQ(ErrorOfDeepseek("deepseek_v3", R"("topk_group": 9)"),
            "topk_group 9 is more than the 8 groups there are");
  EXPECT_EQ(ErrorOfDeepseek("deepseek_v3", R"("topk_group": 1, "num_experts_per_tok": 33)"),
            "1 groups of 32 experts have fewer than the 33 experts of a token");
  EXPECT_EQ(ErrorOfDeepseek("deepseek_v3", R"("topk_method": "greedy")"),
            "topk_method \"greedy\" is not supported; it must be noaux_tc");
  EXPECT_EQ(ErrorOfDeepseek("deepseek_v3", R"("scoring_func": "softmax")"),
            "scoring_func \"softmax\" is not supported; it must be sigmoid");
  EXPECT_EQ(ErrorOfDeepseek("deepseek_v2", R"("topk_method": "noaux_tc")"),
            "topk_method \"noaux_tc\" is not supported; it must be greedy or "
            "group_limited_greedy");
  EXPECT_EQ(ErrorOfDeepseek("deepseek_v2", R"("topk_method": "group_limited_greedy")"),
            "topk_method group_limited_greedy needs n_group and topk_group");
  EXPECT_EQ(
      ErrorOfDeepseek("deepseek_v3", R"("num_attention_heads": 4096,
                                            "num_key_value_heads": 4096, "num_hidden_layers": 33)"),
      "4096 heads in each of 33 layers are more than the 131072 heads that a model with latent "
      "attention may have; reduce num_attention_heads or num_hidden_layers");
  EXPECT_EQ(ErrorOfDeepseek("deepseek_v2", R"("mlp_bias": true)"), "mlp_bias is not supported");
  EXPECT_EQ(ErrorOfDeepseek("deepseek_v2", R"("n_shared_experts": 2000)"),
            "2000 shared experts of 1407 are too many");
}

TEST(Deepseek, V2NeedsToBeToldTheExpertsPerToken) {
  const auto spec = ReadDeepseek(R"({"model_type": "deepseek_v2"})");
  ASSERT_FALSE(spec);
  EXPECT_EQ(spec.error().message, "num_experts_per_tok is missing");
}

TEST(Deepseek, RefusesAbsurdValues) {
  for (const char* fields :
       {R"("kv_lora_rank": 0)", R"("q_lora_rank": -1)", R"("qk_nope_head_dim": 0)",
        R"("v_head_dim": 1000000)", R"("first_k_dense_replace": -1)", R"("moe_layer_freq": 0)",
        R"("num_experts_per_tok": 300)", R"("n_group": 0)", R"("routed_scaling_factor": -1)",
        R"("moe_intermediate_size": 0)", R"("num_nextn_predict_layers": 1000)",
        R"("hidden_act": "gelu")", R"("n_routed_experts": 60000, "num_hidden_layers": 400)"}) {
    EXPECT_NE(ErrorOfDeepseek("deepseek_v3", fields), "") << fields;
  }
}

}  // namespace
}  // namespace convene::model
