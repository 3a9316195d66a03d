#include "evaluate/weight_errors.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <set>
#include <string>
#include <vector>

#include "checkpoint/checkpoint.h"
#include "checkpoint/model_files.h"
#include "hardware/thread_pool.h"
#include "memory/ledger.h"
#include "weights/load_weights.h"

namespace convene::evaluate {
namespace {

constexpr const char* kModels = CONVENE_SOURCE_DIR "/tests/golden/models/";

TEST(WeightError, OfEqualWeightsIsNothing) {
  const std::vector<float> values = {1, -2, 3};
  WeightError error;
  error.Add(values, values);
  EXPECT_DOUBLE_EQ(error.cosine(), 1);
  EXPECT_EQ(error.relative(), 0);
  EXPECT_EQ(WeightError().cosine(), 1);
  EXPECT_EQ(WeightError().relative(), 0);
}

TEST(WeightError, CosineIsOfDirectionsAndRelativeOfDistances) {
  WeightError scaled;
  scaled.Add(std::vector<float>{3, 4}, std::vector<float>{6, 8});
  EXPECT_DOUBLE_EQ(scaled.cosine(), 1);
  EXPECT_DOUBLE_EQ(scaled.relative(), 1);
  WeightError turned;
  turned.Add(std::vector<float>{1, 0}, std::vector<float>{1, 1});
  EXPECT_DOUBLE_EQ(turned.cosine(), std::sqrt(0.5));
  EXPECT_DOUBLE_EQ(turned.relative(), 1);
  WeightError lost;
  lost.Add(std::vector<float>{1, 0}, std::vector<float>{0, 0});
  EXPECT_EQ(lost.cosine(), 0);
  EXPECT_EQ(lost.relative(), 1);
  WeightError both = scaled;
  both.Add(turned);
  EXPECT_DOUBLE_EQ(both.relative(), 1);
  EXPECT_DOUBLE_EQ(both.cosine(), 51 / std::sqrt(26.0 * 102));
}

TEST(MatrixKind, IsWhatIntegerFormatsRound) {
  using enum model::TensorRole;
  EXPECT_EQ(KindOf(kValue, false), MatrixKind::kAttention);
  EXPECT_EQ(KindOf(kSharedDown, false), MatrixKind::kDown);
  EXPECT_EQ(KindOf(kEmbedding, true), MatrixKind::kHead);
  EXPECT_EQ(KindOf(kEmbedding, false), std::nullopt);
  for (const model::TensorRole role : {kRouter, kSharedExpertGate, kFfnNorm, kQueryBias}) {
    EXPECT_EQ(KindOf(role, true), std::nullopt);
  }
}

TEST(MatrixKind, IsKnownOfEveryMatrixOfTheLayers) {
  using enum model::TensorRole;
  const std::set<model::TensorRole> kept = {kRouter, kSharedExpertGate, kRelativeBias, kEmbedding,
                                            kHead};
  for (const char* name : {"deepseek_v2_greedy", "deepseek_v2_groups", "deepseek_v3_fp8",
                           "qwen2_many", "switch_plain"}) {
    const auto spec = checkpoint::OpenConfig(kModels + std::string(name));
    ASSERT_TRUE(spec) << spec.error().message;
    for (const model::TensorBinding& tensor : spec->tensors) {
      if (tensor.stored_shape.size() < 2 || kept.contains(tensor.role)) continue;
      const auto kind = KindOf(tensor.role, false);
      EXPECT_TRUE(kind && kind != MatrixKind::kHead) << name << ": " << tensor.name;
    }
  }
}

// Of kv_b_proj the engine has a copy that is transposed: an edit sees both forms, each as it is
// packed.
TEST(MatrixKind, LatentMatricesAreRoundedAlongTheRowsThatArePacked) {
  const auto checkpoint = checkpoint::Checkpoint::Open(kModels + std::string("deepseek_v3_fp8"));
  ASSERT_TRUE(checkpoint) << checkpoint.error().message;
  const model::LatentSpec& latent = *checkpoint->spec().layers[0].attention.latent;
  ASSERT_NE(latent.kv_rank, latent.nope_dim);
  std::set<int> columns;
  hardware::ThreadPool pool({0});
  memory::Ledger ledger;
  const auto weights = weights::LoadWeights(
      *checkpoint, {.matrices = kernels::WeightFormat::kF32}, {}, hardware::NumaPolicy::kAuto, pool,
      ledger, {}, [&](model::TensorRole role, int cols, std::vector<float>&) {
        if (role == model::TensorRole::kKvUp) columns.insert(cols);
      });
  ASSERT_TRUE(weights) << weights.error().message;
  EXPECT_EQ(columns, (std::set<int>{latent.nope_dim, latent.kv_rank}));
}

TEST(MeasureWeightErrors, IsTheSameOnOneThreadAndCanSample) {
  const std::string model = CONVENE_SOURCE_DIR "/models/demo";
  const std::vector<RoundingScheme> schemes = {*RoundingSchemeFromName("int8-channel"),
                                               *RoundingSchemeFromName("int4-group32")};
  const auto two = MeasureWeightErrors(model, schemes, std::nullopt);
  const auto one = MeasureWeightErrors(model, schemes, 1);
  const auto sample = MeasureWeightErrors(model, schemes, 1, 1 << 18);
  ASSERT_TRUE(two.ok() && one.ok() && sample.ok());
  ASSERT_EQ(two->size(), 2u);
  EXPECT_GT((*two)[0].total().cosine(), 0.9999);
  EXPECT_GT((*two)[1].total().cosine(), 0.99);
  for (size_t kind = 0; kind < kNumMatrixKinds; ++kind) {
    EXPECT_EQ((*two)[1].by_kind[kind].error, (*one)[1].by_kind[kind].error);
    EXPECT_GT((*sample)[1].by_kind[kind].stored, 0);
    EXPECT_LE((*sample)[1].by_kind[kind].stored, (*one)[1].by_kind[kind].stored);
  }
  EXPECT_LT((*sample)[1].total().stored, (*one)[1].total().stored / 2);
  EXPECT_THAT(MeasureWeightErrors("nowhere", schemes, 1).error().message,
              testing::HasSubstr("nowhere"));
}

}  // namespace
}  // namespace convene::evaluate
