#include "model/model_size.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "model/family.h"

namespace convene::model {
namespace {

ModelSpec Read(const char* text) {
  Result<ModelSpec> spec = ModelSpecFromConfig(nlohmann::json::parse(text));
  CHECK(spec.ok(), "{}", spec.error().message);
  return *std::move(spec);
}

ModelSpec Olmoe() {
  return Read(R"({"model_type": "olmoe", "intermediate_size": 1024, "num_key_value_heads": 16})");
}

TEST(ModelSize, CountsWhatThePublishersCount) {
  // From the safetensors metadata of the published checkpoints.
  EXPECT_EQ(TotalParameters(Olmoe()), 6'919'161'856);
  const ModelSpec mixtral = Read(R"({"model_type": "mixtral"})");
  EXPECT_EQ(TotalParameters(mixtral), 46'702'792'704);
  EXPECT_NEAR(static_cast<double>(ActivatedParameters(mixtral)), 12.88e9, 0.01e9);
  const ModelSpec qwen3 = Read(R"({"model_type": "qwen3_moe", "head_dim": 128,
                                   "num_hidden_layers": 48})");
  EXPECT_EQ(TotalParameters(qwen3), 30'532'122'624);
  EXPECT_NEAR(static_cast<double>(ActivatedParameters(qwen3)), 3.35e9, 0.01e9);
  const ModelSpec dbrx = Read(R"({"model_type": "dbrx", "d_model": 6144, "n_heads": 48,
      "n_layers": 40, "vocab_size": 100352, "attn_config": {"kv_n_heads": 8}, "ffn_config":
      {"ffn_hidden_size": 10752, "moe_num_experts": 16, "moe_top_k": 4}})");
  EXPECT_EQ(TotalParameters(dbrx), 131'596'523'520);
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

TEST(ModelSize, CountsTheCacheOfGroupedQueries) {
  EXPECT_EQ(KvElementsPerToken(Olmoe()), 16 * 2 * 2048);
  EXPECT_EQ(KvElementsPerToken(Read(R"({"model_type": "mixtral"})")), 32 * 2 * 8 * 128);
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
  const ModelSpec spec = Read(R"({"model_type": "qwen2_moe", "num_hidden_layers": 3,
                                  "mlp_only_layers": [1]})");
  const TokenFlops flops = FlopsOfToken(spec, 0, false);
  EXPECT_EQ(flops.shared_experts, 2.0 * (6.0 * 2048 * 5632 + 2 * 2048));
  EXPECT_EQ(flops.dense_ffn, 6.0 * 2048 * 5632);
  EXPECT_EQ(flops.experts, 2.0 * 4 * 6 * 2048 * 1408);
}

TEST(ModelSize, SumsOverPositionsWithAndWithoutAWindow) {
  for (const int window : {0, 1, 7, 100}) {
    ModelSpec spec = Read(R"({"model_type": "mixtral", "num_hidden_layers": 2})");
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

TEST(ModelSize, AStepReadsTheHeadAndTheActivatedExperts) {
  const ModelSpec spec = Olmoe();
  const std::vector<int> top_k(16, 8);
  EXPECT_EQ(WeightElementsRead(spec, top_k), ActivatedParameters(spec) - int64_t{50304} * 2048);
  const std::vector<int> all(16, 64);
  EXPECT_EQ(WeightElementsRead(spec, all), TotalParameters(spec) - int64_t{50304} * 2048);

  const ModelSpec tied = Read(R"({"model_type": "olmoe", "tie_word_embeddings": true})");
  EXPECT_EQ(WeightElementsRead(tied, all), TotalParameters(tied));
}

TEST(ModelSize, ExpectsFewerDistinctExpertsThanChoices) {
  const MoeSpec moe = {.num_experts = 64, .top_k = 8, .intermediate_size = 1};
  EXPECT_DOUBLE_EQ(ExpectedActivatedExperts(moe, 0), 0);
  EXPECT_DOUBLE_EQ(ExpectedActivatedExperts(moe, 1), 8);
  EXPECT_DOUBLE_EQ(ExpectedActivatedExperts(moe, 2), 15);
  EXPECT_NEAR(ExpectedActivatedExperts(moe, 1000), 64, 1e-9);
}

}  // namespace
}  // namespace convene::model
