#include "cost/operator_model.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "cost/fit_operator_model.h"
#include "cost/xgboost/train_trees.h"

namespace convene::cost {
namespace {

using ::testing::HasSubstr;

// Trees can be grown in this build.
bool HasTrees() {
  return TrainTrees(std::vector<int32_t>{1}, 1, std::vector<double>{0}, 1, {}).ok();
}

// A product of `rows` rows with a (columns, inner) matrix; peak 1e12 FLOP/s.
OperatorSample Product(double rows, double columns, double inner, double efficiency) {
  const double ideal = 2 * rows * columns * inner / 1e12;
  return {.features = {rows, columns, inner},
          .ideal_seconds = ideal,
          .seconds = 5e-6 + ideal / efficiency};
}

OperatorModelSpec ProductSpec() {
  return {.name = "product", .source = "a test", .feature_names = {"rows", "columns", "inner"}};
}

std::vector<OperatorSample> StraightProducts() {
  std::vector<OperatorSample> samples;
  for (const double rows : {1, 8, 64, 512}) {
    for (const double columns : {256, 1024, 4096}) {
      for (const double inner : {512, 2048}) {
        samples.push_back(Product(rows, columns, inner, 0.5));
      }
    }
  }
  return samples;
}

// The efficiency of tiles of 16 rows and 256 columns, of which the last ones are partly empty.
std::vector<OperatorSample> TiledProducts() {
  std::vector<OperatorSample> samples;
  for (double rows = 1; rows < 400; rows = std::ceil(rows * 1.2)) {
    for (double columns = 100; columns < 10000; columns = std::ceil(columns * 1.3)) {
      const double inner = 2048;
      const double efficiency =
          0.8 * rows / (16 * std::ceil(rows / 16)) * columns / (256 * std::ceil(columns / 256));
      samples.push_back(Product(rows, columns, inner, efficiency));
    }
  }
  return samples;
}

OperatorModel Fitted(const std::vector<OperatorSample>& samples) {
  const auto model = FitOperatorModel(ProductSpec(), samples);
  CHECK(model.ok(), "{}", model.error().message);
  return *model;
}

TEST(OperatorModel, OfALineIsTheLine) {
  const OperatorModel model = Fitted(StraightProducts());
  EXPECT_EQ(model.curve.kind, CurveKind::kLinear);
  EXPECT_NEAR(model.curve.line.alpha, 5e-6, 1e-12);
  EXPECT_NEAR(model.curve.line.beta, 2, 1e-6);
  EXPECT_NEAR(model.curve.line.r2, 1, 1e-9);
  EXPECT_LT(model.chosen().p95, 1e-6);
  const OperatorSample other = Product(100, 3000, 1000, 0.5);
  const OperatorPrediction prediction = model.Predict(other.features, other.ideal_seconds);
  EXPECT_NEAR(prediction.seconds / other.seconds, 1, 1e-6);
  EXPECT_FALSE(prediction.extrapolated);
}

TEST(OperatorModel, WhatNoLineHasIsLearnedByTreesOrInterpolation) {
  const std::vector<OperatorSample> samples = TiledProducts();
  const OperatorModel model = Fitted(samples);
  EXPECT_NE(model.curve.kind, CurveKind::kLinear);
  const HeldOutErrors& line = model.candidates[0];
  EXPECT_LT(model.chosen().mean, 0.9 * line.mean);
  for (const HeldOutErrors& errors : model.candidates) {
    const bool is_tree = errors.kind == CurveKind::kForest || errors.kind == CurveKind::kBoosted;
    if (!is_tree) continue;
    EXPECT_EQ(errors.not_fitted.empty(), HasTrees()) << errors.not_fitted;
  }
  // The same as the curve's own, within its range.
  const OperatorPrediction prediction =
      model.Predict(samples[5].features, samples[5].ideal_seconds);
  EXPECT_LE(prediction.low, prediction.seconds);
  EXPECT_GE(prediction.high, prediction.seconds);
  EXPECT_LT(prediction.low, prediction.high);
}

// Four in five of them would do, and a curve through these is the best one.
TEST(OperatorModel, MorePointsThanInterpolationTakesHaveAnotherCurve) {
  for (const int num_points : {1025, 1279}) {
    std::vector<OperatorSample> samples;
    for (int rows = 1; rows <= num_points; ++rows) {
      samples.push_back(Product(rows, 1024, 2048, 0.8 * rows / (rows + 64)));
    }
    const OperatorModel model = Fitted(samples);
    EXPECT_EQ(model.num_points, num_points);
    EXPECT_NE(model.curve.kind, CurveKind::kInterpolated);
    const HeldOutErrors& interpolated = model.candidates.back();
    ASSERT_EQ(interpolated.kind, CurveKind::kInterpolated);
    EXPECT_THAT(interpolated.not_fitted, HasSubstr("interpolation takes from 4 to 1,024"));
  }
}

TEST(OperatorModel, HeldOutIntervalsHoldNineOfTenPoints) {
  const std::vector<OperatorSample> samples = TiledProducts();
  const OperatorModel model = Fitted(samples);
  int num_inside = 0;
  for (const OperatorSample& sample : samples) {
    const OperatorPrediction p = model.Predict(sample.features, sample.ideal_seconds);
    num_inside += sample.seconds >= p.low && sample.seconds <= p.high;
  }
  // These points were fitted, so that more of them are inside than of points held out.
  EXPECT_GE(num_inside, static_cast<int>(0.9 * static_cast<double>(samples.size())));
}

TEST(OperatorModel, OutsideTheMeasuredRangeAPredictionSaysSoAndFollowsTheLine) {
  const OperatorModel model = Fitted(TiledProducts());
  const OperatorSample inside = Product(300, 2000, 2048, 0.5);
  EXPECT_FALSE(model.Predict(inside.features, inside.ideal_seconds).extrapolated);
  const OperatorSample more_rows = Product(4e6, 2000, 2048, 0.5);
  const OperatorSample more = Product(8e6, 2000, 2048, 0.5);
  const OperatorPrediction first = model.Predict(more_rows.features, more_rows.ideal_seconds);
  const OperatorPrediction second = model.Predict(more.features, more.ideal_seconds);
  EXPECT_TRUE(first.extrapolated);
  EXPECT_TRUE(second.extrapolated);
  EXPECT_NEAR(second.seconds / first.seconds, 2, 0.01);
  // An ideal time that does not fit the features is outside as well.
  EXPECT_TRUE(model.Predict(inside.features, 1e3).extrapolated);
}

TEST(OperatorModel, SamplesInAnyOrderGiveTheSameModelBitForBit) {
  std::vector<OperatorSample> samples = TiledProducts();
  const OperatorModel first = Fitted(samples);
  EXPECT_EQ(Fitted(samples), first);
  std::reverse(samples.begin(), samples.end());
  std::rotate(samples.begin(), samples.begin() + 7, samples.end());
  EXPECT_EQ(Fitted(samples), first);
}

TEST(OperatorModel, PointsWithTheSameFeaturesAreHeldOutTogether) {
  // Each point three times, without any rule between points: what is held out cannot be known.
  std::vector<OperatorSample> samples;
  for (int i = 0; i < 200; ++i) {
    const double noise = 1 + (i * 7919 % 101) / 10.0;
    for (int copy = 0; copy < 3; ++copy) {
      samples.push_back(
          {.features = {1.0 + i, 1, 1}, .ideal_seconds = 1e-3, .seconds = 1e-3 * noise});
    }
  }
  const OperatorModel model = Fitted(samples);
  EXPECT_GT(model.chosen().mean, 0.3);
}

TEST(OperatorModel, JsonLosesNothing) {
  for (const auto& samples : {StraightProducts(), TiledProducts()}) {
    const OperatorModel model = Fitted(samples);
    const std::string text = ToJson(model).dump();
    const auto read = OperatorModelFromJson(nlohmann::json::parse(text));
    ASSERT_TRUE(read) << read.error().message;
    EXPECT_EQ(*read, model);
    EXPECT_EQ(ToJson(*read).dump(), text);
    EXPECT_LT(text.size(), 150'000u);
  }
}

TEST(OperatorModel, TreesOfAnotherBuildPredictWithoutXgboost) {
  OperatorModel model = Fitted(StraightProducts());
  model.curve.kind = CurveKind::kForest;
  model.candidates[1] = {.kind = CurveKind::kForest, .median = 0.1};
  // Twice the line from 100 rows on, in units of 1e-4 of a logarithm.
  model.curve.trees = *RegressionTrees::FromNodes(
      {{0, LogOf(100)}, {RegressionTrees::kLeaf, 0}, {RegressionTrees::kLeaf, 6931}}, 16);
  const auto read = OperatorModelFromJson(ToJson(model));
  ASSERT_TRUE(read) << read.error().message;
  const OperatorSample few = Product(64, 1024, 512, 0.5);
  const OperatorSample many = Product(128, 1024, 512, 0.5);
  EXPECT_NEAR(read->Predict(few.features, few.ideal_seconds).seconds / few.seconds, 1, 1e-4);
  EXPECT_NEAR(read->Predict(many.features, many.ideal_seconds).seconds / many.seconds, 2, 1e-3);
}

TEST(OperatorModel, SamplesThatMakeNoSenseAreRefusedWithTheirPlace) {
  const auto message = [](std::vector<OperatorSample> samples) {
    const auto model = FitOperatorModel(ProductSpec(), samples);
    return model ? "accepted" : model.error().message;
  };
  std::vector<OperatorSample> samples = StraightProducts();
  EXPECT_THAT(message({}), HasSubstr("0 points"));
  EXPECT_THAT(message({samples[0], samples[0], samples[0], samples[1]}),
              HasSubstr("2 points with different features; a model needs at least 3"));
  samples[4].features[1] = 0;
  EXPECT_THAT(message(samples), HasSubstr("columns of sample 4 is 0"));
  samples = StraightProducts();
  samples[2].seconds = std::nan("");
  EXPECT_THAT(message(samples), HasSubstr("the measured time of sample 2 is nan"));
  samples = StraightProducts();
  samples[2].ideal_seconds = -1;
  EXPECT_THAT(message(samples), HasSubstr("the ideal time of sample 2 is -1"));
  samples = StraightProducts();
  samples[1].features.pop_back();
  EXPECT_THAT(message(samples), HasSubstr("sample 1 has 2 features; 3 are named"));
}

TEST(OperatorModel, ThreePointsAreEnough) {
  const std::vector<OperatorSample> samples = {Product(1, 64, 64, 0.5), Product(8, 64, 64, 0.5),
                                               Product(64, 64, 64, 0.5)};
  const OperatorModel model = Fitted(samples);
  EXPECT_EQ(model.curve.kind, CurveKind::kLinear);
  EXPECT_THAT(model.candidates[1].not_fitted, HasSubstr("point"));
}

class DamagedModel : public ::testing::Test {
 protected:
  static std::string MessageWith(const char* pointer, nlohmann::json value) {
    nlohmann::json object = ToJson(Fitted(StraightProducts()));
    object[nlohmann::json::json_pointer(pointer)] = std::move(value);
    const auto model = OperatorModelFromJson(object);
    return model ? "accepted" : model.error().message;
  }
};

TEST_F(DamagedModel, IsRefusedWithTheNameOfTheMember) {
  EXPECT_THAT(MessageWith("/features", nlohmann::json::array()), HasSubstr("features"));
  EXPECT_THAT(MessageWith("/features", {"one"}), HasSubstr("least"));
  EXPECT_THAT(MessageWith("/num_points", 0), HasSubstr("num_points"));
  EXPECT_THAT(MessageWith("/high_factor", -1), HasSubstr("high_factor"));
  EXPECT_THAT(MessageWith("/least/0", "x"), HasSubstr("least"));
  EXPECT_THAT(MessageWith("/held_out", nlohmann::json::array()), HasSubstr("held_out"));
  EXPECT_THAT(MessageWith("/held_out/0/median", 1e300), HasSubstr("median"));
  EXPECT_THAT(MessageWith("/curve", 3), HasSubstr("curve"));
  EXPECT_THAT(MessageWith("/curve/kind", "magic"), HasSubstr("magic"));
  EXPECT_THAT(MessageWith("/curve/alpha_seconds", -1), HasSubstr("alpha_seconds"));
  EXPECT_THAT(MessageWith("/curve/least_logs", {1}), HasSubstr("least_logs"));
  EXPECT_THAT(MessageWith("/curve/least_logs/0", 99'999'999), HasSubstr("least_logs"));
  EXPECT_THAT(MessageWith("/curve/kind", "forest"), HasSubstr("trees"));
  EXPECT_THAT(MessageWith("/curve/kind", "interpolated"), HasSubstr("scales"));
  EXPECT_FALSE(OperatorModelFromJson(nlohmann::json::array()));
}

TEST_F(DamagedModel, EveryMemberIsNeeded) {
  const nlohmann::json whole = ToJson(Fitted(TiledProducts()));
  for (const auto& [key, value] : whole.items()) {
    nlohmann::json object = whole;
    object.erase(key);
    const auto model = OperatorModelFromJson(object);
    ASSERT_FALSE(model) << key;
    EXPECT_THAT(model.error().message, HasSubstr(key));
  }
}

TEST(OperatorModel, IsDescribedInOneLine) {
  const std::string text = Describe(Fitted(StraightProducts()));
  EXPECT_THAT(text, HasSubstr("product: linear, held out 0.0 % median"));
  EXPECT_THAT(text, HasSubstr("24 points"));
  EXPECT_EQ(text.find('\n'), std::string::npos);
}

}  // namespace
}  // namespace convene::cost
