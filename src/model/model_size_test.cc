#include "model/model_size.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "model/family.h"

namespace convene::model {
namespace {

ModelSpec ReadSpec(const char* text) {
  Result<ModelSpec> spec = ModelSpecFromConfig(nlohmann::json::parse(text));
  CHECK(spec.ok(), "{}", spec.error().message);
  return *std::move(spec);
}

ModelSpec Olmoe() {
  return ReadSpec(
      R"({"model_type": "olmoe", "intermediate_size": 1024, "num_key_value_heads": 16})");
}

TEST(ModelSize, CountsWhatThePublishersCount) {
  // From the safetensors metadata of the published checkpoints.
  EXPECT_EQ(TotalParameters(Olmoe()), 6'919'161'856);
  const ModelSpec mixtral = ReadSpec(R"({"model_type": "mixtral"})");
  EXPECT_EQ(TotalParameters(mixtral), 46'702'792'704);
  EXPECT_NEAR(static_cast<double>(ActivatedParameters(mixtral)), 12.88e9, 0.01e9);
  const ModelSpec qwen3 = ReadSpec(R"({"model_type": "qwen3_moe", "head_dim": 128,
                                   "num_hidden_layers": 48})");
  EXPECT_EQ(TotalParameters(qwen3), 30'532'122'624);
  EXPECT_NEAR(static_cast<double>(ActivatedParameters(qwen3)), 3.35e9, 0.01e9);
  const ModelSpec dbrx = ReadSpec(R"({"model_type": "dbrx", "d_model": 6144, "n_heads": 48,
      "n_layers": 40, "vocab_size": 100352, "attn_config": {"kv_n_heads": 8}, "ffn_config":
      {"ffn_hidden_size": 10752, "moe_num_experts": 16, "moe_top_k": 4}})");
  EXPECT_EQ(TotalParameters(dbrx), 131'596'523'520);
}

constexpr const char* kV2Lite = R"({"model_type": "deepseek_v2", "vocab_size": 102400,
    "hidden_size": 2048, "num_hidden_layers": 27, "num_attention_heads": 16, "q_lora_rank": null,
    "intermediate_size": 10944, "moe_intermediate_size": 1408, "n_routed_experts": 64,
    "num_experts_per_tok": 6, "n_shared_experts": 2, "first_k_dense_replace": 1})";

// The published file leaves nothing out that these defaults do not say.
constexpr const char* kSwitchBase128 = R"({"model_type": "switch_transformers", "d_ff": 3072,
    "num_experts": 128, "num_sparse_encoder_layers": 6, "num_sparse_decoder_layers": 6})";

int64_t ActivatedWithoutEmbedding(const ModelSpec& spec) {
  return ActivatedParameters(spec) -
         CountParameters(spec)[static_cast<int>(TensorKind::kEmbedding)];
}

TEST(ModelSize, CountsLatentAttentionAsItsPublishersDo) {
  const ModelSpec lite = ReadSpec(kV2Lite);
  EXPECT_EQ(TotalParameters(lite), 15'706'484'224);
  EXPECT_NEAR(static_cast<double>(ActivatedWithoutEmbedding(lite)), 2.4e9, 0.06e9);
  const ModelSpec v3 = ReadSpec(R"({"model_type": "deepseek_v3"})");
  EXPECT_EQ(TotalParameters(v3), 671'026'419'200);
  EXPECT_NEAR(static_cast<double>(ActivatedParameters(v3)), 37e9, 0.6e9);
}

TEST(ModelSize, CountsBiasesAndSinksAsTheirPublisherDoes) {
  const ModelSpec gpt_oss = ReadSpec(R"({"model_type": "gpt_oss", "num_hidden_layers": 24,
                                     "num_local_experts": 32})");
  EXPECT_EQ(TotalParameters(gpt_oss), 20'914'757'184);
  EXPECT_NEAR(static_cast<double>(ActivatedWithoutEmbedding(gpt_oss)), 3.61e9, 0.01e9);
}

TEST(ModelSize, CountsBothStacksOfAnEncoderDecoder) {
  const ModelSpec spec = ReadSpec(kSwitchBase128);
  EXPECT_EQ(TotalParameters(spec), 7'415'217'408);
  // T5-base has 223 million; a router in every other layer is what comes on top.
  EXPECT_EQ(ActivatedParameters(spec), 224'083'200);
  const StackParameters encoder = EncoderParameters(spec);
  EXPECT_EQ(encoder.total, 3'681'111'168);
  EXPECT_EQ(encoder.activated, 85'544'064);
  EXPECT_EQ(CountParameters(spec)[static_cast<int>(TensorKind::kCrossAttention)],
            12 * 4 * 768 * 768);
  EXPECT_EQ(EncoderParameters(Olmoe()).total, 0);
}

TEST(ModelSize, KindsAddUpToTheWhole) {
  const ParameterCounts counts = CountParameters(Olmoe());
  EXPECT_EQ(counts[static_cast<int>(TensorKind::kEmbedding)], 50304 * 2048);
  EXPECT_EQ(counts[static_cast<int>(TensorKind::kHead)], 50304 * 2048);
  EXPECT_EQ(counts[static_cast<int>(TensorKind::kAttention)], 16 * 4 * 2048 * 2048);
  EXPECT_EQ(counts[static_cast<int>(TensorKind::kRouter)], 16 * 64 * 2048);
  EXPECT_EQ(counts[static_cast<int>(TensorKind::kExperts)], int64_t{16} * 64 * 3 * 2048 * 1024);
  EXPECT_EQ(counts[static_cast<int>(TensorKind::kNorms)], 16 * 4 * 2048 + 2048);
  EXPECT_EQ(counts[static_cast<int>(TensorKind::kSharedExperts)], 0);
  EXPECT_EQ(counts[static_cast<int>(TensorKind::kDenseFfn)], 0);
}

TEST(ModelSize, CountsWhatCrossAttentionKeepsOfAnInput) {
  EXPECT_EQ(CrossElementsPerInputToken(Olmoe()), 0);
  const ModelSpec spec = ReadSpec(kSwitchBase128);
  EXPECT_EQ(CrossElementsPerInputToken(spec), 12 * 2 * 768);
}

// Of the matrices that every token meets, those of its experts among them.
int64_t MatrixElements(const ModelSpec& spec) {
  int64_t elements = ActivatedParameters(spec);
  for (const TensorBinding& tensor : spec.tensors) {
    const bool is_matrix = tensor.cols > 1 && tensor.role != TensorRole::kRelativeBias &&
                           (tensor.role != TensorRole::kEmbedding || spec.tied_embeddings);
    if (!is_matrix) elements -= tensor.rows * tensor.cols;
  }
  return elements;
}

TEST(ModelSize, FlopsOfLatentAttentionAreThoseOfItsMatrices) {
  for (const char* text : {kV2Lite, R"({"model_type": "deepseek_v3"})"}) {
    const ModelSpec spec = ReadSpec(text);
    const TokenFlops flops = FlopsOfToken(spec, 0, true);
    EXPECT_EQ(flops.total() - flops.attention_scores,
              2.0 * static_cast<double>(MatrixElements(spec)));
  }
  // At the third token, per layer and head: expanded 192 + 128 elements a key, absorbed 576 + 512.
  const ModelSpec spec = ReadSpec(kV2Lite);
  EXPECT_EQ(FlopsOfToken(spec, 2, true).attention_scores, 27.0 * 16 * 3 * 2 * (192 + 128));
  EXPECT_EQ(AbsorbedScoreFlops(spec, 2), 27.0 * 16 * 3 * 2 * (576 + 512));
  EXPECT_EQ(AbsorbedScoreFlops(Olmoe(), 2), FlopsOfToken(Olmoe(), 2, true).attention_scores);
}

TEST(ModelSize, FlopsOfAnEncoderDecoderAreThoseOfBothStacks) {
  const ModelSpec spec = ReadSpec(kSwitchBase128);
  const TokenFlops input = FlopsOfInput(spec, 1);
  const TokenFlops token = FlopsOfToken(spec, 0, true, 1);
  const double score = 12.0 * 4 * 768;
  EXPECT_EQ(input.attention_scores, score);
  EXPECT_EQ(input.head, 0);
  EXPECT_EQ(token.attention_scores, score);
  // Its cross attention: query and output matrices, and scores with one token of input.
  EXPECT_EQ(token.cross_attention, 12.0 * 2 * 2 * 768 * 768 + score);
  EXPECT_EQ(input.total() + token.total() - 3 * score,
            2.0 * static_cast<double>(MatrixElements(spec)));

  const TokenFlops longer = FlopsOfInput(spec, 100);
  EXPECT_EQ(longer.attention_scores, score * 100 * 100);
  EXPECT_EQ(longer.experts, input.experts * 100);
  EXPECT_EQ(FlopsOfToken(spec, 0, true, 100).cross_attention,
            12.0 * 2 * 2 * 768 * 768 + 100 * score);
  EXPECT_EQ(FlopsOfInput(Olmoe(), 100).total(), 0);
}

TEST(ModelSize, FlopsAreTwicePerActiveMatrixElement) {
  const ModelSpec spec = Olmoe();
  const TokenFlops flops = FlopsOfToken(spec, 0, true);
  EXPECT_EQ(flops.attention_projections, 16.0 * 8 * 2048 * 2048);
  EXPECT_EQ(flops.attention_scores, 16.0 * 4 * 2048);
  EXPECT_EQ(flops.experts, 16.0 * 8 * 6 * 2048 * 1024);
  EXPECT_EQ(flops.router, 16.0 * 2 * 2048 * 64);
  EXPECT_EQ(flops.head, 2.0 * 50304 * 2048);
  EXPECT_EQ(FlopsOfToken(spec, 0, false).head, 0);

  const ParameterCounts counts = CountParameters(spec);
  const int64_t matrices = ActivatedParameters(spec) -
                           counts[static_cast<int>(TensorKind::kEmbedding)] -
                           counts[static_cast<int>(TensorKind::kNorms)];
  EXPECT_EQ(flops.total() - flops.attention_scores, 2.0 * static_cast<double>(matrices));
}

TEST(ModelSize, CountsSharedAndDenseBlocks) {
  const ModelSpec spec = ReadSpec(R"({"model_type": "qwen2_moe", "num_hidden_layers": 3,
                                  "mlp_only_layers": [1]})");
  const TokenFlops flops = FlopsOfToken(spec, 0, false);
  EXPECT_EQ(flops.shared_experts, 2.0 * (6.0 * 2048 * 5632 + 2 * 2048));
  EXPECT_EQ(flops.dense_ffn, 6.0 * 2048 * 5632);
  EXPECT_EQ(flops.experts, 2.0 * 4 * 6 * 2048 * 1408);
}

TEST(ModelSize, SumsOverPositionsWithAndWithoutAWindow) {
  for (const int window : {0, 1, 7, 100}) {
    ModelSpec spec = ReadSpec(R"({"model_type": "mixtral", "num_hidden_layers": 2})");
    for (LayerSpec& layer : spec.layers) layer.attention.window = window;
    for (const auto& [first, count] : {std::pair(0, 1), {0, 20}, {5, 10}, {30, 4}, {3, 0}}) {
      TokenFlops expected;
      for (int position = first; position < first + count; ++position) {
        const TokenFlops token = FlopsOfToken(spec, position, false);
        expected.attention_scores += token.attention_scores;
        expected.attention_projections += token.attention_projections;
        const int keys = window == 0 ? position + 1 : std::min(position + 1, window);
        EXPECT_EQ(token.attention_scores, 2.0 * 4 * 4096 * keys);
      }
      const TokenFlops sum = FlopsOfTokens(spec, first, count, 0);
      EXPECT_EQ(sum.attention_scores, expected.attention_scores) << window << " " << first;
      EXPECT_EQ(sum.attention_projections, expected.attention_projections);
    }
  }
}

}  // namespace
}  // namespace convene::model
