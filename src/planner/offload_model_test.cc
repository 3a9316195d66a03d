#include "planner/offload_model.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "model/family.h"
#include "model/model_size.h"
#include "planner/model_roofline.h"

namespace convene::planner {
namespace {

model::ModelSpec Mixtral() {
  const auto spec = model::ModelSpecFromConfig(nlohmann::json::parse(
      R"({"model_type": "mixtral", "hidden_size": 4096, "intermediate_size": 14336,
        "num_attention_heads": 32, "num_key_value_heads": 8, "num_hidden_layers": 32,
        "num_local_experts": 8, "num_experts_per_tok": 2, "vocab_size": 32000,
        "max_position_embeddings": 32768, "rms_norm_eps": 1e-05, "rope_theta": 1000000.0,
        "hidden_act": "silu", "tie_word_embeddings": false})"));
  EXPECT_TRUE(spec.ok());
  return *spec;
}

TEST(OffloadModel, CountsMixtral) {
  const OffloadModel model = OffloadModelOf(Mixtral());
  EXPECT_EQ(model.num_layers, 32);
  ASSERT_EQ(model.streamed.size(), 1u);
  EXPECT_EQ(model.streamed[0].num_layers, 32);
  EXPECT_EQ(model.StreamedElements(), 32.0 * 8 * 3 * 4096 * 14336);
  EXPECT_NEAR(model.resident_elements + model.StreamedElements(),
              static_cast<double>(model::TotalParameters(Mixtral())), 1);
  EXPECT_EQ(model.CachedElements(512), 32.0 * 512 * 2 * 8 * 128);
  EXPECT_EQ(model.ScoreFlops(1), 32.0 * 4 * 4096);
  EXPECT_EQ(model.PromptScoreFlops(3), 32.0 * 4 * 4096 * 6);
  // One token visits two of eight experts, many all.
  EXPECT_NEAR(model.VisitedElements(1) / model.StreamedElements(), 0.25, 1e-12);
  EXPECT_NEAR(model.VisitedElements(128) / model.StreamedElements(), 1, 1e-12);
  EXPECT_NEAR(model.StreamedFlops(1), 2 * 0.25 * model.StreamedElements(), 1);
}

TEST(ModelRoofline, HasThePapersIntensities) {
  const OffloadModel model = OffloadModelOf(Mixtral());
  // Grouped queries: four heads for each of keys and values, 4 FLOP/B in 16 bits.
  EXPECT_NEAR(AttentionWork(model, 512, 2).slow_intensity(), 4, 1e-12);
  EXPECT_NEAR(AttentionWork(model, 512, 0.5).slow_intensity(), 16, 1e-12);
  EXPECT_NEAR(AttentionWork(model, 512, 2, 0.75).slow_intensity(), 16, 1e-12);
  EXPECT_NEAR(AttentionWork(model, 512, 2, 0.75).fast_intensity(), 4, 1e-12);
  const cost::TierWork experts = ExpertsWork(model, 1024, 128, 2);
  EXPECT_NEAR(experts.fast_intensity(), 32, 1e-9);
  EXPECT_NEAR(experts.slow_intensity(), 256, 1e-9);
  EXPECT_NEAR(ExpertsWork(model, 1024, 128, 2, 0.5).slow_intensity(), 512, 1e-9);
  EXPECT_EQ(BatchOfIntensity(model, 600, 2), 2400);
  EXPECT_EQ(BatchOfIntensity(model, 600, 2, 0.5), 1200);
  EXPECT_EQ(BatchOfIntensity(model, 1e12, 2), 0);
}

TEST(OffloadModel, KnowsWindowsLatentsAndDenseLayers) {
  model::ModelSpec spec = Mixtral();
  spec.layers.resize(3);
  spec.layers[1].attention.window = 100;
  spec.layers[2].moe.reset();
  spec.layers[2].dense_intermediate_size = 1000;
  spec.layers[2].attention.latent =
      model::LatentSpec{.query_rank = 0, .kv_rank = 512, .nope_dim = 128, .rope_dim = 64};
  const OffloadModel model = OffloadModelOf(spec);
  ASSERT_EQ(model.attention.size(), 3u);
  EXPECT_EQ(model.CachedElements(200), 200 * 2048.0 + 100 * 2048 + 200 * 576);
  EXPECT_EQ(model.ScoreFlops(200),
            200 * 4.0 * 4096 + 100 * 4.0 * 4096 + 200 * 2.0 * 32 * (576 + 512));
  ASSERT_EQ(model.streamed.size(), 2u);
  EXPECT_EQ(model.streamed[1].expert_elements, 3.0 * 4096 * 1000);
}

}  // namespace
}  // namespace convene::planner
