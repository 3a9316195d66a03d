#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <set>

#include "model/family.h"

namespace convene::model {
namespace {

using nlohmann::json;

Result<ModelSpec> ReadSwitch(std::string_view fields) {
  return ModelSpecFromConfig(
      json::parse(fmt::format(R"({{"model_type": "switch_transformers"{}}})", fields)));
}

std::string ErrorOfSwitch(std::string_view fields) {
  const Result<ModelSpec> spec = ReadSwitch(fields);
  return spec ? "" : spec.error().message;
}

const TensorBinding* FindInSwitch(const ModelSpec& spec, bool encoder, TensorRole role,
                                  int layer = -1, int expert = -1) {
  const auto found =
      std::find_if(spec.tensors.begin(), spec.tensors.end(), [&](const TensorBinding& tensor) {
        return tensor.encoder == encoder && tensor.role == role && tensor.layer == layer &&
               tensor.expert == expert;
      });
  return found == spec.tensors.end() ? nullptr : &*found;
}

std::vector<int> SparseLayers(const std::vector<LayerSpec>& layers) {
  std::vector<int> sparse;
  for (int layer = 0; layer < std::ssize(layers); ++layer) {
    if (layers[layer].moe) sparse.push_back(layer);
  }
  return sparse;
}

using Shape = std::vector<int64_t>;

constexpr const char* kBase128 = R"(, "vocab_size": 32128, "d_model": 768, "d_kv": 64,
    "d_ff": 3072, "num_layers": 12, "num_sparse_encoder_layers": 6, "num_decoder_layers": 12,
    "num_sparse_decoder_layers": 6, "num_heads": 12, "num_experts": 128,
    "num_selected_experts": 1, "router_bias": false, "router_dtype": "float32",
    "router_ignore_padding_tokens": false, "expert_capacity": 64,
    "relative_attention_num_buckets": 32, "relative_attention_max_distance": 128,
    "dropout_rate": 0.1, "layer_norm_epsilon": 1e-06, "feed_forward_proj": "relu",
    "is_gated_act": false, "tie_word_embeddings": true, "decoder_start_token_id": 0,
    "eos_token_id": 1, "pad_token_id": 0)";

TEST(SwitchTransformers, ReadsBase128) {
  const auto spec = ReadSwitch(kBase128);
  ASSERT_TRUE(spec) << spec.error().message;
  const std::vector<int> odd = {1, 3, 5, 7, 9, 11};
  EXPECT_EQ(SparseLayers(spec->encoder_layers), odd);
  EXPECT_EQ(SparseLayers(spec->layers), odd);
  EXPECT_EQ(spec->decoder_start_token, 0);
  EXPECT_EQ(spec->relative_bias->num_buckets, 32);
  EXPECT_EQ(spec->relative_bias->max_distance, 128);
  EXPECT_EQ(spec->rope.rotary_dim, 0);
  EXPECT_EQ(spec->norm.kind, NormKind::kRms);
  EXPECT_FLOAT_EQ(spec->logits_scale, 1 / std::sqrt(768.0f));

  const LayerSpec& layer = spec->layers[1];
  EXPECT_EQ(layer.attention.scale, 1);
  EXPECT_TRUE(layer.attention.causal);
  EXPECT_TRUE(layer.attention.relative_bias);
  ASSERT_TRUE(layer.cross_attention);
  EXPECT_FALSE(layer.cross_attention->causal);
  EXPECT_FALSE(layer.cross_attention->relative_bias);
  EXPECT_EQ(layer.moe->num_experts, 128);
  EXPECT_EQ(layer.moe->top_k, 1);
  EXPECT_EQ(layer.moe->router_norm, RouterNorm::kNone);
  EXPECT_FALSE(layer.moe->activation.gated());
  EXPECT_FALSE(layer.moe->router_bias);
  EXPECT_EQ(spec->layers[0].dense_intermediate_size, 3072);
  EXPECT_FALSE(spec->layers[0].dense_activation.gated());
  EXPECT_FALSE(spec->encoder_layers[1].attention.causal);
  EXPECT_FALSE(spec->encoder_layers[1].cross_attention);
}

TEST(SwitchTransformers, NamesTheTensorsOfBothStacks) {
  const auto spec = ReadSwitch(kBase128);
  ASSERT_TRUE(spec);
  EXPECT_EQ(FindInSwitch(*spec, false, TensorRole::kEmbedding)->name, "shared.weight");
  EXPECT_EQ(FindInSwitch(*spec, true, TensorRole::kEmbedding), nullptr);
  EXPECT_EQ(FindInSwitch(*spec, false, TensorRole::kHead), nullptr);
  EXPECT_EQ(FindInSwitch(*spec, true, TensorRole::kRelativeBias)->name,
            "encoder.block.0.layer.0.SelfAttention.relative_attention_bias.weight");
  EXPECT_EQ(FindInSwitch(*spec, false, TensorRole::kRelativeBias)->stored_shape, (Shape{32, 12}));
  EXPECT_EQ(FindInSwitch(*spec, false, TensorRole::kCrossKey, 11)->name,
            "decoder.block.11.layer.1.EncDecAttention.k.weight");
  EXPECT_EQ(FindInSwitch(*spec, true, TensorRole::kDenseUp, 0)->name,
            "encoder.block.0.layer.1.mlp.wi.weight");
  EXPECT_EQ(FindInSwitch(*spec, false, TensorRole::kExpertDown, 1, 127)->name,
            "decoder.block.1.layer.2.mlp.experts.expert_127.wo.weight");
  EXPECT_EQ(FindInSwitch(*spec, false, TensorRole::kExpertDown, 1, 127)->stored_shape,
            (Shape{768, 3072}));
  EXPECT_EQ(FindInSwitch(*spec, true, TensorRole::kRouter, 1)->name,
            "encoder.block.1.layer.1.mlp.router.classifier.weight");
  EXPECT_EQ(FindInSwitch(*spec, true, TensorRole::kRouterBias, 1), nullptr);
  EXPECT_EQ(FindInSwitch(*spec, true, TensorRole::kFinalNorm)->name,
            "encoder.final_layer_norm.weight");
}

TEST(SwitchTransformers, FillsInWhatIsLeftOut) {
  const auto spec = ReadSwitch("");
  ASSERT_TRUE(spec) << spec.error().message;
  EXPECT_EQ(spec->encoder_layers.size(), 12u);
  EXPECT_EQ(spec->layers.size(), 12u);
  // Three sparse layers of twelve: every fourth.
  EXPECT_EQ(SparseLayers(spec->layers), (std::vector<int>{1, 5, 9}));
  EXPECT_EQ(spec->layers[0].dense_intermediate_size, 2048);
  EXPECT_EQ(spec->layers[1].moe->num_experts, 8);
  EXPECT_TRUE(spec->tied_embeddings);
}

TEST(SwitchTransformers, ANullNumberOfDecoderLayersIsThatOfTheEncoder) {
  EXPECT_EQ(ReadSwitch(R"(, "num_layers": 5)")->layers.size(), 12u);
  EXPECT_EQ(ReadSwitch(R"(, "num_layers": 5, "num_decoder_layers": null)")->layers.size(), 5u);
  EXPECT_EQ(ReadSwitch(R"(, "num_layers": 5, "num_decoder_layers": 2)")->layers.size(), 2u);
}

TEST(SwitchTransformers, FindsTheSparseLayersAsTransformersDoes) {
  const auto sparse = [](const char* fields) {
    return SparseLayers(ReadSwitch(fields)->encoder_layers);
  };
  EXPECT_EQ(sparse(R"(, "num_layers": 4, "num_sparse_encoder_layers": 4)"),
            (std::vector<int>{0, 1, 2, 3}));
  EXPECT_EQ(sparse(R"(, "num_layers": 4, "num_sparse_encoder_layers": 0)"), std::vector<int>{1});
  EXPECT_EQ(sparse(R"(, "num_layers": 6, "encoder_sparse_step": 3)"), (std::vector<int>{1, 4}));
  EXPECT_EQ(sparse(R"(, "num_layers": 6, "encoder_sparse_step": 0)"), std::vector<int>());
  // More sparse layers than there are: the step is 3 / 9, which is 0.
  EXPECT_EQ(sparse(R"(, "num_layers": 3, "num_sparse_encoder_layers": 9)"), std::vector<int>());
}

TEST(SwitchTransformers, UntiedStacksHaveEmbeddingsOfTheirOwnOrTheSharedOne) {
  const auto spec = ReadSwitch(R"(, "tie_word_embeddings": false, "router_bias": true)");
  ASSERT_TRUE(spec) << spec.error().message;
  EXPECT_EQ(spec->logits_scale, 1);
  const TensorBinding* encoder = FindInSwitch(*spec, true, TensorRole::kEmbedding);
  ASSERT_NE(encoder, nullptr);
  EXPECT_EQ(encoder->name, "encoder.embed_tokens.weight");
  EXPECT_EQ(encoder->fallback_name, "shared.weight");
  EXPECT_EQ(FindInSwitch(*spec, false, TensorRole::kEmbedding)->name,
            "decoder.embed_tokens.weight");
  EXPECT_EQ(FindInSwitch(*spec, false, TensorRole::kHead)->name, "lm_head.weight");
  EXPECT_EQ(FindInSwitch(*spec, true, TensorRole::kRouterBias, 1)->stored_shape, Shape{8});
}

TEST(SwitchTransformers, ReadsTheGenericNamesToo) {
  const auto spec =
      ReadSwitch(R"(, "hidden_size": 96, "num_attention_heads": 3, "num_hidden_layers": 2)");
  ASSERT_TRUE(spec) << spec.error().message;
  EXPECT_EQ(spec->hidden_size, 96);
  EXPECT_EQ(spec->encoder_layers.size(), 2u);
  EXPECT_EQ(spec->layers[0].attention.query_dim(), 3 * 64);
}

TEST(SwitchTransformers, BeginsWithThePaddingTokenWhereNoOtherIsNamed) {
  EXPECT_EQ(ReadSwitch(R"(, "pad_token_id": 7)")->decoder_start_token, 7);
  EXPECT_EQ(ReadSwitch(R"(, "pad_token_id": 7, "decoder_start_token_id": 3)")->decoder_start_token,
            3);
}

TEST(SwitchTransformers, SaysWhatIsWrong) {
  EXPECT_EQ(ErrorOfSwitch(R"(, "vocab_size": 10, "decoder_start_token_id": 10)"),
            "decoder_start_token_id 10 is not in the vocabulary of 10");
  EXPECT_EQ(ErrorOfSwitch(R"(, "dense_act_fn": "gelu")"),
            "the activation \"gelu\" is not supported; it must be relu, without a gate");
  EXPECT_EQ(ErrorOfSwitch(R"(, "relative_attention_max_distance": 16)"),
            "relative_attention_max_distance 16 must be more than half of the 32 buckets");
  EXPECT_EQ(ErrorOfSwitch(R"(, "decoder_start_token_id": -1)"),
            "decoder_start_token_id is -1, but must be an integer from 0 to 16777216");
  for (const char* fields :
       {R"(, "is_gated_act": true)", R"(, "feed_forward_proj": "gated-gelu")", R"(, "d_kv": 0)",
        R"(, "num_experts": 0)", R"(, "num_layers": 0)", R"(, "num_decoder_layers": 0)",
        R"(, "num_sparse_encoder_layers": -1)", R"(, "encoder_sparse_step": -1)",
        R"(, "relative_attention_num_buckets": 3)", R"(, "layer_norm_epsilon": 2)",
        R"(, "num_experts": 60000, "num_sparse_encoder_layers": 12)"}) {
    EXPECT_NE(ErrorOfSwitch(fields), "") << fields;
  }
}

TEST(SwitchTransformers, EveryTensorIsBoundOnce) {
  for (const char* fields : {"", R"(, "tie_word_embeddings": false)"}) {
    const auto spec = ReadSwitch(fields);
    std::set<std::string> names;
    for (const TensorBinding& tensor : spec->tensors) {
      EXPECT_TRUE(names.insert(tensor.name).second) << tensor.name;
    }
  }
}

}  // namespace
}  // namespace convene::model
