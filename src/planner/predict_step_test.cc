#include "planner/predict_step.h"

#include <gtest/gtest.h>

#include <cmath>

namespace convene::planner {
namespace {

using schedule::SizeKind;
using schedule::TaskKind;

model::ModelSpec SpecOfSteps() {
  model::LayerSpec layer;
  layer.attention = {.num_heads = 8, .num_kv_heads = 8, .head_dim = 16, .value_dim = 16};
  layer.moe = model::MoeSpec{.num_experts = 8, .top_k = 2, .intermediate_size = 64};
  model::ModelSpec spec;
  spec.hidden_size = 128;
  spec.vocab_size = 1000;
  spec.layers = {layer, layer};
  return spec;
}

// A task of any kind takes a millisecond for a megabyte of weights, and nothing else counts;
// an exchange a second for a gigabyte after 10 µs.
cost::StepCosts CostsOfSteps(int num_ranks) {
  cost::StepCosts costs{.num_ranks = num_ranks, .weights = "bf16"};
  for (auto& task : costs.tasks) {
    task = cost::TaskCost{};
    task->per_weight_byte = {.at = {1e9}, .value = {1e-9}};
    task->most_flops = task->most_row_bytes = task->most_groups = task->most_score_flops = 1e18;
  }
  costs.exchange.seconds = {.at = {1, 1e9}, .value = {1e-5, 1 + 1e-5}};
  costs.step_once = 1e-4;
  return costs;
}

StepQuestion Question(const model::ModelSpec& spec, const strategy::Layout& layout) {
  StepQuestion question{.spec = spec, .options = {.roles = layout}};
  question.groups.resize(static_cast<size_t>(layout.attention_dp), {{.num_tokens = 100}});
  return question;
}

TEST(PredictStep, OneRankTakesTheSumOfItsTasks) {
  const model::ModelSpec spec = SpecOfSteps();
  const cost::StepCosts costs = CostsOfSteps(1);
  const auto step = PredictStep(Question(spec, {}), MeasuredPricer(costs));
  ASSERT_TRUE(step.ok()) << step.error().message;
  const double attention = 4.0 * 128 * 128 * 2;
  const double router = 4.0 * 128 * 8;
  const double expert = 3.0 * 128 * 64 * 2;
  const double head = 128.0 * 1000 * 2;
  // The last layer goes on with one row, which visits two experts.
  const double few = 8 * (1 - std::pow(0.75, 100));
  const double bytes = 2 * (attention + router) + expert * (few + 2) + head;
  EXPECT_NEAR(step->seconds, bytes * 1e-9 + 1e-4, 1e-9);
  EXPECT_EQ(step->extrapolated_share, 0);
}

TEST(PredictStep, RanksExchangeWhatTheyHaveNot) {
  const model::ModelSpec spec = SpecOfSteps();
  const cost::StepCosts costs = CostsOfSteps(2);
  const auto both =
      PredictStep(Question(spec, {.attention_dp = 2, .expert_ep = 2}), MeasuredPricer(costs));
  ASSERT_TRUE(both.ok()) << both.error().message;
  double exchanged = 0;
  for (size_t id = 0; id < both->schedule.tasks.size(); ++id) {
    const schedule::Task& task = both->schedule.tasks[id];
    if (task.kind == TaskKind::kDispatch && task.lane.rank == 0) {
      exchanged += both->timeline.tasks[id].seconds();
    }
  }
  // 100 rows of each rank go to the other one where they visit an expert there (all but 3 of 14
  // times); of the last layer one row.
  const double odds = 1 - (4.0 * 3) / (8 * 7);
  const double row_bytes = 128 * 2 + 1 + 6;
  EXPECT_NEAR(exchanged, 2e-5 + 2 * 101 * odds * row_bytes * 1e-9, 1e-8);
}

// The rows go through the head in chunks of 128, which have nothing beside them: the exchanges of
// the whole step cost what they cost without chunks.
TEST(PredictStep, ChunksOfADividedHeadOverlapNothing) {
  const model::ModelSpec spec = SpecOfSteps();
  cost::StepCosts costs = CostsOfSteps(2);
  // Far more than a lasting transfer would take for their bytes.
  costs.exchange.seconds = {.at = {1, 1e4, 1e9}, .value = {1e-5, 1e-2, 1}};
  const auto exchanges_of = [&](int num_wanted) {
    StepQuestion question =
        Question(spec, {.attention_tp = 2, .expert_tp = 2, .divides_head = true});
    question.groups[0].assign(static_cast<size_t>(num_wanted), {.num_tokens = 1});
    const auto step = PredictStep(question, MeasuredPricer(costs));
    EXPECT_TRUE(step.ok()) << step.error().message;
    EXPECT_FALSE(cost::Overlaps(step->schedule)) << num_wanted;
    double seconds = 0;
    for (size_t id = 0; id < step->schedule.tasks.size(); ++id) {
      const schedule::Task& task = step->schedule.tasks[id];
      const bool counts = IsCollective(task.kind) && task.kind != TaskKind::kGatherLogits;
      if (counts && task.lane.rank == 0) seconds += step->timeline.tasks[id].seconds();
    }
    return seconds;
  };
  const double whole = exchanges_of(128);
  EXPECT_GT(whole, 0);
  EXPECT_NEAR(exchanges_of(129), whole, 0.01 * whole);
}

TEST(PredictStep, SaysWhatWasNotMeasured) {
  const model::ModelSpec spec = SpecOfSteps();
  cost::StepCosts costs = CostsOfSteps(1);
  costs.tasks[static_cast<size_t>(TaskKind::kExperts)].reset();
  const auto step = PredictStep(Question(spec, {}), MeasuredPricer(costs));
  ASSERT_FALSE(step.ok());
  EXPECT_NE(step.error().message.find("experts"), std::string::npos) << step.error().message;
  StepQuestion uneven = Question(spec, {});
  uneven.groups.emplace_back();
  EXPECT_FALSE(PredictStep(uneven, MeasuredPricer(costs)).ok());
}

TEST(PredictStep, WantedRowsAreThoseOfTheRankThatOwnsThem) {
  const model::ModelSpec spec = SpecOfSteps();
  const cost::ExpectedSizes sizes =
      ExpectSizes(Question(spec, {.attention_tp = 2, .expert_tp = 2}));
  EXPECT_EQ(sizes.at({.kind = SizeKind::kRows, .from = 0}), 50);
  EXPECT_EQ(sizes.at({.kind = SizeKind::kTokens, .from = 0}), 100);
  EXPECT_EQ(sizes.at({.kind = SizeKind::kWanted, .from = 0}), 0);
  EXPECT_EQ(sizes.at({.kind = SizeKind::kWanted, .from = 1}), 1);
  EXPECT_EQ(sizes.at({.kind = SizeKind::kTokens, .from = 0, .wanted = true}), 1);
  EXPECT_EQ(sizes.at({.kind = SizeKind::kKeys, .from = 1}), 5050);
}

}  // namespace
}  // namespace convene::planner
