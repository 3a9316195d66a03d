#include "cost/task_cost.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>
#include <random>

#include "cost/non_negative_fit.h"

namespace convene::cost {
namespace {

// A machine that reads weights at 40 GB/s or computes at 1 TFLOP/s, whichever is slower, and takes
// 3 µs for a task, 1 µs for a group and 5 ns for 100 bytes of rows.
constexpr double kBalance = 1e12 / 40e9;

double TrueSeconds(const TaskParts& parts, const MachineState& state) {
  const double reading = parts.weight_bytes / 40e9 * state.memory;
  const double computing = parts.product_flops / 1e12 * state.compute;
  return 3e-6 * state.compute + 1e-6 * parts.groups * state.compute +
         5e-11 * parts.row_bytes * state.compute + std::max(reading, computing);
}

std::vector<TaskSample> Samples(int count, double noise, bool drifts) {
  std::mt19937 random(11);
  std::uniform_real_distribution<double> uniform(0, 1);
  std::vector<TaskSample> samples;
  for (int i = 0; i < count; ++i) {
    TaskSample sample;
    sample.parts.groups = std::floor(1 + 60 * uniform(random));
    sample.parts.weight_bytes = sample.parts.groups * 3e6;
    // 1 to 512 rows of each weight, in int8.
    const double rows = std::exp2(9 * uniform(random));
    sample.parts.product_flops = 2 * rows * sample.parts.weight_bytes;
    sample.parts.row_bytes = rows * sample.parts.groups * 20'000;
    if (drifts) sample.state = {.memory = 0.6 + uniform(random), .compute = 1};
    sample.seconds =
        TrueSeconds(sample.parts, sample.state) * (1 + noise * (2 * uniform(random) - 1));
    sample.fold = i;
    samples.push_back(sample);
  }
  return samples;
}

TEST(TaskCost, FindsTheCostsOfAMachineAtPointsThatItHasNotSeen) {
  const std::vector<TaskSample> samples = Samples(400, 0.02, /*drifts=*/false);
  const HeldOut held_out = TaskCost::Validate(samples, kBalance, 1);
  EXPECT_EQ(held_out.num_points, 400);
  EXPECT_LT(held_out.median_error, 0.03);
  EXPECT_LT(held_out.p95_error, 0.08);
  EXPECT_LT(std::abs(held_out.bias), 0.01);
  EXPECT_GT(held_out.r2, 0.995);
}

TEST(TaskCost, PredictsWhatADriftingMachineTakesInEachState) {
  const std::vector<TaskSample> samples = Samples(400, 0.02, /*drifts=*/true);
  const TaskCost cost = TaskCost::Fit(samples, kBalance, 1);
  // Far from where it takes as long for weights as for FLOPs: there the state moves that point.
  const TaskParts few{.product_flops = 4e8, .weight_bytes = 2e8, .groups = 60, .row_bytes = 4e6};
  for (const double memory : {0.7, 1.0, 1.5}) {
    const MachineState state{.memory = memory};
    EXPECT_NEAR(cost.Seconds(few, state) / TrueSeconds(few, state), 1, 0.2) << memory;
  }
  EXPECT_GT(cost.Seconds(few, {.memory = 1.5}), 1.3 * cost.Seconds(few, {.memory = 1}));
  EXPECT_EQ(TaskCost::BestSensitivity(samples, kBalance), 1);
}

TEST(TaskCost, AFewDisturbedPointsDoNotBendIt) {
  std::vector<TaskSample> samples = Samples(200, 0.01, /*drifts=*/false);
  for (size_t i = 0; i < samples.size(); i += 10) samples[i].seconds *= 5;
  const TaskCost cost = TaskCost::Fit(samples, kBalance, 1);
  const TaskParts& parts = samples[1].parts;
  EXPECT_NEAR(cost.Seconds(parts) / TrueSeconds(parts, {}), 1, 0.05);
}

TEST(TaskCost, MarksWhatIsBeyondItsSamples) {
  const std::vector<TaskSample> samples = Samples(100, 0, /*drifts=*/false);
  const TaskCost cost = TaskCost::Fit(samples, kBalance, 1);
  EXPECT_FALSE(cost.Extrapolates(samples[3].parts));
  TaskParts larger = samples[3].parts;
  larger.groups = 10 * cost.most_groups;
  EXPECT_TRUE(cost.Extrapolates(larger));
}

TEST(TaskCost, CurvesDoNotSwingWhereSamplesAreFewAndDisturbed) {
  std::mt19937 random(5);
  std::uniform_real_distribution<double> uniform(0, 1);
  std::vector<TaskSample> samples = Samples(60, 0.5, /*drifts=*/false);
  for (TaskSample& sample : samples) {
    // 50 GB/s of keys and values, or 1 TFLOP/s of scores.
    sample.parts.cache_bytes = 1e6 * (1 + uniform(random));
    sample.parts.score_flops = sample.parts.cache_bytes * std::exp2(9 * uniform(random));
    const double seconds =
        std::max(sample.parts.cache_bytes / 50e9, sample.parts.score_flops / 1e12);
    sample.seconds += seconds * (1 + 0.5 * (2 * uniform(random) - 1));
  }
  const TaskCost cost = TaskCost::Fit(samples, kBalance, 1);
  ASSERT_GT(cost.per_score.value.size(), 3u);
  EXPECT_TRUE(std::is_sorted(cost.per_weight_byte.value.begin(), cost.per_weight_byte.value.end()));
  EXPECT_TRUE(std::is_sorted(cost.per_score.value.rbegin(), cost.per_score.value.rend()));
  EXPECT_GT(cost.per_score.value.front(), 0);
}

TEST(TaskCost, IsTheSameAfterJson) {
  const TaskCost cost = TaskCost::Fit(Samples(50, 0.02, true), kBalance, 0.5);
  const auto read = TaskCostFromJson(nlohmann::json::parse(ToJson(cost).dump()));
  ASSERT_TRUE(read.ok()) << read.error().message;
  EXPECT_EQ(*read, cost);
}

TEST(TaskCost, RefusesJsonThatIsNone) {
  const nlohmann::json good = ToJson(TaskCost::Fit(Samples(50, 0.02, false), kBalance, 1));
  EXPECT_FALSE(TaskCostFromJson(nlohmann::json::array()));
  for (const auto& [key, value] : good.items()) {
    nlohmann::json without = good;
    without.erase(key);
    EXPECT_FALSE(TaskCostFromJson(without)) << key;
    nlohmann::json wrong = good;
    wrong[key] = -1;
    EXPECT_FALSE(TaskCostFromJson(wrong)) << key;
  }
  nlohmann::json falls = good;
  falls["per_weight_byte_s"]["at"] = {3, 2};
  falls["per_weight_byte_s"]["value"] = {1, 1};
  EXPECT_FALSE(TaskCostFromJson(falls));
  nlohmann::json uneven = good;
  uneven["per_weight_byte_s"]["value"].push_back(1);
  EXPECT_FALSE(TaskCostFromJson(uneven));
}

TEST(Curve, IsStraightBetweenItsPoints) {
  EXPECT_EQ(WeightsAt({1, 3}, 0.5), (std::vector<double>{1, 0}));
  EXPECT_EQ(WeightsAt({1, 3}, 2), (std::vector<double>{0.5, 0.5}));
  EXPECT_EQ(WeightsAt({1, 3}, 6), (std::vector<double>{0, 2})) << "in proportion beyond";
  EXPECT_TRUE(WeightsAt({}, 2).empty());
}

TEST(Curve, PointsAreFewAndReachFromTheSmallestToTheLargestValue) {
  std::vector<double> values = {0, -1};
  for (int i = 1; i <= 10'000; ++i) values.push_back(i);
  const std::vector<double> points = PointsOfCurve(values);
  EXPECT_LE(points.size(), 12u);
  EXPECT_EQ(points.front(), 1);
  EXPECT_EQ(points.back(), 10'000);
  EXPECT_TRUE(PointsOfCurve({}).empty());
}

TEST(NonNegativeFit, GivesNoNegativeCoefficients) {
  // By least squares alone the second coefficient would be -1.
  const std::vector<Row> rows = {{{1, 0}, 3}, {{1, 1}, 2}, {{1, 0}, 3}, {{1, 1}, 2}};
  const std::vector<double> found = FitNonNegative(rows);
  ASSERT_EQ(found.size(), 2u);
  EXPECT_EQ(found[1], 0);
  EXPECT_GT(found[0], 2);
  EXPECT_LT(found[0], 3);
}

// Exchanges of a few bytes take as long as it takes until another rank gets to run.
TEST(NonNegativeFit, TimesThatScatterWidelyAreFittedByTheirMean) {
  std::mt19937 random(7);
  std::exponential_distribution<double> scatter(1);
  std::vector<Row> rows;
  double sum = 0;
  for (int i = 0; i < 400; ++i) {
    rows.push_back({{1}, 1e-5 + 1e-4 * scatter(random)});
    sum += rows.back().sum;
  }
  const double mean = sum / 400;
  EXPECT_NEAR(FitNonNegative(rows).front(), mean, 0.15 * mean);
  // One that was disturbed does not count as much as its length says.
  rows.push_back({{1}, 0.1});
  EXPECT_NEAR(FitNonNegative(rows).front(), mean, 0.2 * mean);
}

TEST(NonNegativeFit, FindsCoefficientsOfVeryDifferentSize) {
  std::vector<Row> rows;
  for (int i = 1; i <= 50; ++i) {
    const double bytes = 1e6 * i;
    const double groups = (i * 7) % 11;
    rows.push_back({{1, bytes, groups, 0}, 2e-6 + 3e-11 * bytes + 4e-6 * groups});
  }
  const std::vector<double> found = FitNonNegative(rows);
  EXPECT_NEAR(found[0] / 2e-6, 1, 0.05);
  EXPECT_NEAR(found[1] / 3e-11, 1, 1e-3);
  EXPECT_NEAR(found[2] / 4e-6, 1, 1e-3);
  EXPECT_EQ(found[3], 0) << "a column of zeros";
}

// Scores over another format take what they take; all else is as long as it was, but for a factor.
TEST(TaskCost, ScoresOverAnotherFormatAreFittedBesideAllElse) {
  TaskCost usual;
  usual.once = 5e-6;
  usual.per_row_byte = 1e-10;
  usual.per_weight_byte = {.at = {1, 1000}, .value = {1e-10, 2e-9}};
  usual.per_score = {.at = {1, 100}, .value = {4e-11, 2e-11}};
  usual.most_score_flops = 1;
  std::vector<TaskSample> samples;
  int fold = 0;
  for (const double tokens : {1.0, 16.0, 128.0}) {
    for (const double context : {64.0, 1000.0, 3000.0}) {
      const TaskParts parts{.product_flops = 2e6 * tokens,
                            .weight_bytes = 1e6,
                            .groups = 1,
                            .score_flops = 4e3 * tokens * context,
                            .cache_bytes = 1e3 * context,
                            .row_bytes = 1e4 * tokens};
      TaskCost without = usual;
      without.per_score = {};
      samples.push_back({.parts = parts,
                         .state = {},
                         .seconds = 1.1 * without.Seconds(parts) + 3e-11 * parts.score_flops,
                         .fold = fold++});
    }
  }
  const TaskCost fitted = TaskCost::FitCurve(usual, TaskCurve::kScores, samples);
  for (const TaskSample& sample : samples) {
    EXPECT_NEAR(fitted.Seconds(sample.parts), sample.seconds, 1e-3 * sample.seconds);
    EXPECT_FALSE(fitted.Extrapolates(sample.parts));
  }
  EXPECT_NEAR(fitted.once, 1.1 * usual.once, 1e-8);
  const HeldOut held_out = TaskCost::ValidateCurve(usual, TaskCurve::kScores, samples);
  EXPECT_EQ(held_out.num_points, 9);
  EXPECT_LT(held_out.median_error, 0.01);
}

TEST(TaskCost, WeightsInACacheHaveACurveOfTheirOwn) {
  TaskCost usual;
  usual.once = 3e-6;
  usual.per_group = 1e-6;
  usual.per_row_byte = 5e-11;
  usual.per_weight_byte = {.at = {2, 25, 1024}, .value = {1 / 40e9, 1 / 40e9, 1e-9}};
  // Three times as fast as from memory, and computed as fast.
  std::vector<TaskSample> cached = Samples(100, 0, /*drifts=*/false);
  for (TaskSample& sample : cached) {
    const TaskParts& parts = sample.parts;
    const double computing = parts.product_flops / 1e12;
    sample.seconds += std::max(parts.weight_bytes / 120e9, computing) -
                      std::max(parts.weight_bytes / 40e9, computing);
  }
  const TaskCost fitted = TaskCost::FitCurve(usual, TaskCurve::kWeights, cached);
  for (const TaskSample& sample : cached) {
    EXPECT_NEAR(fitted.Seconds(sample.parts), sample.seconds, 0.2 * sample.seconds);
    if (sample.parts.product_intensity() > 4) continue;
    EXPECT_GT(usual.Seconds(sample.parts), 2 * sample.seconds);
  }
  const HeldOut held_out = TaskCost::ValidateCurve(usual, TaskCurve::kWeights, cached);
  EXPECT_LT(held_out.median_error, 0.1);
}

}  // namespace
}  // namespace convene::cost
