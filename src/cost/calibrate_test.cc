#include "cost/calibrate.h"

#include <gtest/gtest.h>

#include "cost/prices.h"

namespace convene::cost {
namespace {

using schedule::LaneKind;
using schedule::Schedule;
using schedule::TaskKind;
using schedule::Timeline;

double NoSizes(const schedule::Size&) { return 0; }

schedule::Task Experts(double flops, double bytes) {
  return {.kind = TaskKind::kExperts,
          .work = {.flops = schedule::Constant(flops), .memory_bytes = schedule::Constant(bytes)}};
}

schedule::Task Dispatch(int rank, double bytes) {
  return {.kind = TaskKind::kDispatch,
          .lane = {rank, LaneKind::kSend},
          .collective = 0,
          .work = {.link_bytes = schedule::Constant(bytes)}};
}

TEST(Calibrate, ChoosesWhatExplainsTheTimes) {
  // 1 + 2 * bytes, whatever the flops.
  const Schedule schedule = {.tasks = {Experts(9, 1), Experts(1, 2), Experts(5, 4)}};
  const Timeline timeline = {{{0, 3}, {3, 8}, {8, 17}}};
  const std::vector<MeasuredStep> steps = {{&schedule, &timeline, NoSizes}};
  const KindFits fits = Calibrate(steps);
  const auto& fit = fits[static_cast<size_t>(TaskKind::kExperts)];
  ASSERT_TRUE(fit);
  EXPECT_EQ(fit->over, Regressor::kMemory);
  EXPECT_NEAR(fit->fit.alpha, 1, 1e-9);
  EXPECT_NEAR(fit->fit.beta, 2, 1e-9);
  EXPECT_FALSE(fits[static_cast<size_t>(TaskKind::kDispatch)]);

  Rates rates = {.ranks = {{.flops = ConstantRate(1), .memory = ConstantRate(1)}}};
  UseFits(fits, rates);
  const auto graph = BuildActivityGraph(schedule);
  const Prices prices = PriceSchedule(schedule, graph, rates, NoSizes);
  EXPECT_NEAR(SecondsAlone(prices, 0), 3, 1e-9);
  EXPECT_NEAR(SecondsAlone(prices, 2), 9, 1e-9);
}

TEST(Calibrate, ACollectiveCountsOnceAndWithoutWaiting) {
  const Schedule schedule = {.num_ranks = 2, .tasks = {Dispatch(0, 4), Dispatch(1, 2)}};
  const Timeline timeline = {{{0, 7}, {5, 7.1}}};
  const std::vector<MeasuredStep> steps = {{&schedule, &timeline, NoSizes}};
  const auto fit = Calibrate(steps)[static_cast<size_t>(TaskKind::kDispatch)];
  ASSERT_TRUE(fit);
  EXPECT_EQ(fit->over, Regressor::kLink);
  EXPECT_EQ(fit->fit.num_points, 1);
  EXPECT_NEAR(fit->fit.at(4), 2, 1e-9);
}

TEST(Calibrate, TasksThatDidNotRunOrHaveNoWorkAreHarmless) {
  const Schedule schedule = {.tasks = {Experts(0, 0), Experts(3, 3)}};
  const Timeline timeline = {{{0, 2}, {}}};
  const std::vector<MeasuredStep> steps = {{&schedule, &timeline, NoSizes}};
  const auto fit = Calibrate(steps)[static_cast<size_t>(TaskKind::kExperts)];
  ASSERT_TRUE(fit);
  EXPECT_EQ(fit->fit.num_points, 1);
  EXPECT_EQ(fit->fit.at(10), 2);
}

TEST(Prices, AMeasuredCostWithoutResourcesDoesNotDisturbTheNext) {
  Rates rates = {.ranks = {{.memory = ConstantRate(1)}}};
  rates.measured[static_cast<size_t>(TaskKind::kExperts)] = {.beta = 1};
  schedule::Task attention = Experts(0, 6);
  attention.kind = TaskKind::kAttention;
  const Schedule schedule = {.tasks = {Experts(2, 5), attention}};
  const Prices prices = PriceSchedule(schedule, BuildActivityGraph(schedule), rates, NoSizes);
  EXPECT_EQ(SecondsAlone(prices, 0), 2);
  EXPECT_EQ(SecondsAlone(prices, 1), 6);
}

TEST(Rates, AProfileIsSharedEvenlyByRanks) {
  hardware::Profile profile;
  profile.cpus = {0, 1, 2, 3};
  profile.bf16_gflops = 800;
  profile.read_gbps = 20;
  const Rates rates = RatesFromProfile(profile, 2);
  EXPECT_EQ(rates.of(1).cores, 2);
  EXPECT_DOUBLE_EQ(rates.of(1).flops.at(2), 400e9);
  EXPECT_DOUBLE_EQ(rates.of(1).flops.at(9), 400e9);
  EXPECT_DOUBLE_EQ(rates.shared_memory.at(1), 5e9);
  EXPECT_DOUBLE_EQ(rates.shared_memory.at(4), 20e9);
}

}  // namespace
}  // namespace convene::cost
