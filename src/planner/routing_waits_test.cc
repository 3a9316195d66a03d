#include "planner/routing_waits.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "planner/invented_costs_test.h"

namespace convene::planner {
namespace {

StepQuestion Decode(const model::ModelSpec& spec, const strategy::Layout& layout, int batch) {
  StepQuestion question{.spec = spec, .options = {.roles = layout}};
  question.groups.resize(static_cast<size_t>(layout.attention_dp));
  for (int i = 0; i < batch; ++i) {
    question.groups[static_cast<size_t>(i % layout.attention_dp)].push_back(
        {.first_position = 100, .num_tokens = 1});
  }
  return question;
}

std::vector<double> WaitsOf(const StepQuestion& question) {
  const cost::StepCosts costs = InventedCosts(question.options.roles.num_ranks(), 1e10);
  const Result<std::vector<double>> waits = RoutingWaits(question, MeasuredPricer(costs));
  EXPECT_TRUE(waits.ok());
  return waits ? *waits : std::vector<double>();
}

constexpr strategy::Layout kWhole = {.attention_dp = 2, .expert_ep = 2};
constexpr strategy::Layout kSliced = {.attention_dp = 2, .expert_tp = 2};

TEST(RoutingWaits, FewTokensVisitMoreExpertsOfOneRankThanOfAnother) {
  const model::ModelSpec spec = InventedSpec(2);
  const std::vector<double> waits = WaitsOf(Decode(spec, kWhole, 2));
  ASSERT_EQ(waits.size(), 2u);
  // Of 16 experts two tokens visit two each. The fuller rank has on average 2.53 of them in place
  // of 1.88, by counting all cases; an expert is read in 0.315 ms.
  EXPECT_GT(waits[0], 0.3 * 3.15e-4);
  EXPECT_LT(waits[0], 1.1 * 3.15e-4);
  EXPECT_EQ(waits[0], waits[1]);
}

TEST(RoutingWaits, NobodyWaitsWhereExpertsAreSlicedOrTokensManyOrThereAreNone) {
  const model::ModelSpec spec = InventedSpec(2);
  EXPECT_EQ(WaitsOf(Decode(spec, kSliced, 2)), std::vector<double>(2, 0));
  EXPECT_EQ(WaitsOf(Decode(spec, kWhole, 4096)), std::vector<double>(2, 0));
  model::ModelSpec dense = spec;
  for (model::LayerSpec& layer : dense.layers) layer.moe.reset();
  EXPECT_EQ(WaitsOf(Decode(dense, kWhole, 2)), std::vector<double>(2, 0));
}

// Of 64 experts a token visits 8, and computing them is what takes time.
double ComputedWait(int num_ranks, int batch, std::vector<cost::ExpertShares> shares = {}) {
  model::ModelSpec spec = InventedSpec(1, /*num_experts=*/64);
  spec.layers.front().moe->top_k = 8;
  cost::StepCosts costs = InventedCosts(num_ranks, 1e12);
  for (auto& task : costs.tasks) task->per_weight_byte = {.at = {1, 1e6}, .value = {1e-11, 1e-5}};
  StepQuestion question = Decode(spec, {.attention_dp = num_ranks, .expert_ep = num_ranks}, batch);
  question.shares = std::move(shares);
  const auto waits = RoutingWaits(question, MeasuredPricer(costs));
  EXPECT_TRUE(waits.ok());
  return waits ? waits->front() : -1;
}

double MeanComputedWait(int num_ranks, int first_batch) {
  constexpr int kBatches = 8;
  double mean = 0;
  for (int i = 0; i < kBatches; ++i) mean += ComputedWait(num_ranks, first_batch + i) / kBatches;
  return mean;
}

TEST(RoutingWaits, GrowSteadilyWithTokensWhereExpertsAreComputed) {
  // Next to no expert is left out from 32 tokens on, and still ranks have unlike numbers of visits.
  const double before = MeanComputedWait(8, 25);
  const double behind = MeanComputedWait(8, 33);
  EXPECT_GT(before, 0);
  EXPECT_NEAR(behind / before, 1, 0.3);
  // Of more tokens than are drawn: by the root of their number.
  EXPECT_NEAR(MeanComputedWait(8, 121) / MeanComputedWait(8, 129), 1, 0.3);
  EXPECT_NEAR(MeanComputedWait(8, 512) / MeanComputedWait(8, 128), 2, 0.5);
}

TEST(RoutingWaits, MoreRanksWaitLonger) {
  // Seconds of all experts are divided by as many ranks.
  EXPECT_GT(8 * MeanComputedWait(8, 64), 2 * 2 * MeanComputedWait(2, 64));
  EXPECT_GT(MeanComputedWait(2, 64), 0);
  EXPECT_EQ(ComputedWait(8, 16384), 0);
  EXPECT_EQ(ComputedWait(2, 4096), 0);
}

TEST(RoutingWaits, AStatedSkewIsNoWait) {
  // With 90 % of the visits at one of two ranks that one is always the busiest.
  std::vector<double> counts(64, 0.1 / 56);
  std::fill_n(counts.begin(), 8, 0.9 / 8);
  const double skewed = ComputedWait(2, 64, {cost::SharesFromCounts(counts, 8)});
  EXPECT_LT(skewed, 0.3 * ComputedWait(2, 64));
}

TEST(RoutingWaits, AreFoundOnceForAllPipelinesAndAnewForOtherSteps) {
  const cost::StepCosts costs = InventedCosts(2, 1e10);
  const MeasuredPricer pricer(costs);
  const auto known = [&] { return pricer.known_waits().size(); };
  const model::ModelSpec spec = InventedSpec(2);
  StepQuestion question = Decode(spec, kWhole, 2);
  const std::vector<double> first = *RoutingWaits(question, pricer);
  EXPECT_EQ(known(), 1u);
  question.options.pipeline = {.chunks = 2, .micro_batches = 2};
  EXPECT_EQ(*RoutingWaits(question, pricer), first);
  EXPECT_EQ(known(), 1u);
  const strategy::Layout unlike = {.attention_dp = 2, .expert_ep = 2, .expert_weights = {3, 1}};
  const model::ModelSpec wider = InventedSpec(2, /*num_experts=*/32);
  for (const StepQuestion& other :
       {Decode(spec, kWhole, 3), Decode(spec, unlike, 2), Decode(wider, kWhole, 2)}) {
    const size_t before = known();
    EXPECT_EQ(*RoutingWaits(other, pricer), WaitsOf(other));
    EXPECT_EQ(known(), before + 1);
  }
}

// Which layers stand for others is decided by how they concentrate their tokens.
TEST(RoutingWaits, EachLayerWaitsByItsOwnShares) {
  const model::ModelSpec spec = InventedSpec(4);
  StepQuestion question = Decode(spec, kWhole, 3);
  for (int layer = 0; layer < spec.num_layers(); ++layer) {
    std::vector<double> counts(16, 1);
    counts[0] = counts[8] = 1 + 20 * layer;  // of either rank
    question.shares.push_back(cost::SharesFromCounts(counts, 2));
  }
  const std::vector<double> waits = WaitsOf(question);
  ASSERT_EQ(waits.size(), question.shares.size());
  for (size_t layer = 0; layer < waits.size(); ++layer) {
    StepQuestion alike = Decode(spec, kWhole, 3);
    alike.shares = {question.shares[layer]};
    EXPECT_EQ(waits[layer], WaitsOf(alike).front()) << layer;
  }
  // Fewer experts are left to be visited more on one rank than on the other.
  EXPECT_LT(waits.back(), waits.front());
}

// Experts that are read from a disk are computed in the parts in which they come.
TEST(RoutingWaits, AreThereWhereExpertsAreReadInParts) {
  const model::ModelSpec spec = InventedSpec(2);
  cost::StepCosts costs = InventedCosts(2, 1e10);
  StepQuestion question = Decode(spec, kWhole, 2);
  question.options.paging = strategy::Paging{.chunks = 3, .after_routing = true, .missing = 0.5};
  question.options.pipeline = strategy::PipelineOf(question.options);
  const Result<std::vector<double>> waits =
      RoutingWaits(question, MeasuredPricer(costs, {}, {.bytes_per_second = 1e9}));
  ASSERT_TRUE(waits.ok()) << waits.error().message;
  EXPECT_GT(waits->front(), 0);
}

TEST(RoutingWaits, AreInTheTimeOfTheStepAndNotInItsTimeline) {
  const model::ModelSpec spec = InventedSpec(3);
  const StepQuestion question = Decode(spec, kWhole, 2);
  const cost::StepCosts costs = InventedCosts(2, 1e10);
  const Result<PredictedStep> step = PredictStep(question, MeasuredPricer(costs));
  ASSERT_TRUE(step.ok());
  double waits = 0;
  for (const double each : WaitsOf(question)) waits += each;
  EXPECT_NEAR(step->seconds, step->timeline.seconds() + step->once_seconds + waits, 1e-9);
}

}  // namespace
}  // namespace convene::planner
