#include "cost/fit_step_costs.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <optional>
#include <vector>

#include "cost/two_ranks_test.h"

namespace convene::cost {
namespace {

using schedule::LaneKind;
using schedule::Schedule;
using schedule::TaskKind;
using schedule::Work;

// Experts of few rows wait for memory, those of many for the cores: of each rank both are found.
TEST(FitStepCosts, FindsHowSlowMemoryAndCoresOfEachRankAre) {
  const ReferenceSpeed reference{.read_bytes_per_second = 1e10, .dot_operations_per_second = 1e11};
  std::vector<Schedule> schedules;
  std::vector<SampledStep> steps;
  for (const double intensity : {1.0, 2.0, 4.0, 100.0, 400.0, 1600.0}) {
    for (const double bytes : {1e6, 4e6, 1.6e7}) {
      Schedule& schedule = schedules.emplace_back(Schedule{.num_ranks = 2});
      for (int rank = 0; rank < 2; ++rank) {
        schedule.tasks.push_back({.kind = TaskKind::kExperts,
                                  .lane = {rank, LaneKind::kCompute},
                                  .layer = 0,
                                  .work = {.flops = schedule::Constant(intensity * bytes),
                                           .memory_bytes = schedule::Constant(bytes)}});
      }
    }
  }
  const auto fitted = [&](const MachineState& second) {
    steps.clear();
    for (size_t i = 0; i < schedules.size(); ++i) {
      schedule::Timeline timeline;
      for (int rank = 0; rank < 2; ++rank) {
        const Work& work = schedules[i].tasks[static_cast<size_t>(rank)].work;
        const double bytes = work.memory_bytes[0].factor;
        const double flops = work.flops[0].factor;
        const bool waits = flops < 10 * bytes;
        const double slow = rank == 0 ? 1 : waits ? second.memory : second.compute;
        timeline.tasks.push_back({0, slow * std::max(bytes / 1e10, flops / 1e11)});
      }
      steps.push_back({.schedule = &schedules[i],
                       .sizes = NothingSized,
                       .timelines = {timeline},
                       .states = {{}},
                       .fold = static_cast<int>(i)});
    }
    return FitStepCosts(steps, reference);
  };
  EXPECT_TRUE(fitted({}).rank_states.empty());
  for (const MachineState& second :
       {MachineState{.memory = 3, .compute = 1}, MachineState{.memory = 1, .compute = 3},
        MachineState{.memory = 2, .compute = 2}}) {
    const StepCosts costs = fitted(second);
    const std::vector<MachineState>& states = costs.rank_states;
    ASSERT_EQ(states.size(), 2u);
    // What both ranks cost lies between them; what they are to each other is what counts.
    EXPECT_NEAR(states[1].memory / states[0].memory, second.memory, 0.15 * second.memory);
    EXPECT_NEAR(states[1].compute / states[0].compute, second.compute, 0.15 * second.compute);
    // Prices know what ranks differ by, so that it is no error of theirs.
    EXPECT_LT(costs.held_out[static_cast<size_t>(TaskKind::kExperts)]->p95_error, 0.2);
  }
}

// As where a kind of short exchange has waits that longer ones have not.
TEST(FitStepCosts, ExchangesOfMoreBytesDoNotCostLess) {
  std::vector<Schedule> schedules;
  std::vector<double> seconds = {4e-4, 1e-4, 2e-3};
  for (const double bytes : {1e4, 4e4, 1.6e6}) {
    Schedule schedule = TwoRanks(/*overlaps=*/false);
    for (schedule::Task& task : schedule.tasks) {
      if (task.kind != TaskKind::kExperts) task.work.link_bytes = schedule::Constant(bytes / 2);
    }
    schedules.push_back(schedule);
  }
  std::vector<SampledStep> steps;
  for (size_t i = 0; i < schedules.size(); ++i) {
    schedule::Timeline timeline;
    for (int rank = 0; rank < 2; ++rank) {
      timeline.tasks.push_back({0, 1e-3});
      timeline.tasks.push_back({1e-3, 1e-3 + seconds[i]});
    }
    steps.push_back({.schedule = &schedules[i],
                     .sizes = NothingSized,
                     .timelines = {timeline},
                     .states = {{}},
                     .fold = static_cast<int>(i)});
  }
  const ExchangeCost cost = FitStepCosts(steps, {4e10, 1e12}, {.validates = false}).exchange;
  EXPECT_TRUE(std::ranges::is_sorted(cost.seconds.value));
  EXPECT_EQ(cost.once(), cost.SecondsOf(4e4));
  EXPECT_GT(cost.once(), 1e-4);
  EXPECT_LT(cost.once(), 4e-4);
  EXPECT_NEAR(cost.SecondsOf(1.6e6) / 2e-3, 1, 0.02);
}

TEST(FitStepCosts, ACollectiveLastsFromTheLastToComeToTheLastToGo) {
  schedule::Timeline timeline{.tasks = {{1, 5}, {2, 4}, {3, -1}}};
  EXPECT_EQ(CollectiveSeconds(timeline, std::vector<schedule::TaskId>{0, 1}), 3);
  EXPECT_LT(CollectiveSeconds(timeline, std::vector<schedule::TaskId>{0, 2}), 0) << "did not run";
}

TEST(FitStepCosts, FindsWhatTheStepsWereMadeOf) {
  // Three loads, each in three rounds of which one was disturbed.
  std::vector<Schedule> schedules;
  for (const double bytes : {1e6, 4e6, 16e6}) {
    Schedule schedule = TwoRanks(/*overlaps=*/false);
    for (schedule::Task& task : schedule.tasks) {
      if (task.kind == TaskKind::kExperts) {
        task.work = {.flops = schedule::Constant(2 * bytes),
                     .memory_bytes = schedule::Constant(bytes)};
      } else {
        task.work = {.link_bytes = schedule::Constant(bytes / 10)};
      }
    }
    schedules.push_back(schedule);
  }
  std::vector<SampledStep> steps;
  for (size_t i = 0; i < schedules.size(); ++i) {
    const double bytes = schedules[i].tasks[0].work.memory_bytes[0].factor;
    const double compute = 1e-4 + bytes * 1e-10;
    const double exchange = bytes / 5 * 1e-9;
    schedule::Timeline timeline;
    for (int rank = 0; rank < 2; ++rank) {
      timeline.tasks.push_back({0, compute});
      timeline.tasks.push_back({compute, compute + exchange});
    }
    schedule::Timeline disturbed = timeline;
    for (schedule::TaskTime& time : disturbed.tasks) time.end += 1;
    steps.push_back({.schedule = &schedules[i],
                     .sizes = NothingSized,
                     .timelines = {timeline, disturbed, timeline},
                     .states = {{}, {}, {}},
                     .fold = static_cast<int>(i)});
  }
  const StepCosts costs = FitStepCosts(steps, {4e10, 1e12});
  const auto& experts = costs.tasks[static_cast<size_t>(TaskKind::kExperts)];
  ASSERT_TRUE(experts.has_value());
  const TaskParts parts = PartsOf(schedules[1].tasks[0], NothingSized);
  EXPECT_NEAR(experts->Seconds(parts) / (1e-4 + 4e6 * 1e-10), 1, 0.02);
  EXPECT_NEAR(costs.exchange.SecondsOf(8e5) / 8e-4, 1, 0.02);
  EXPECT_EQ(KindWithoutCost(schedules[0], costs), std::nullopt);
  EXPECT_EQ(KindWithoutCost(schedules[0], StepCosts()), TaskKind::kExperts);
}

// A rank whose bytes have gone out computes while another one still receives.
TEST(FitStepCosts, TakesExchangesThatSomeRanksAreThroughWithBeforeOthers) {
  Schedule schedule = TwoRanks(/*overlaps=*/false);
  schedule.tasks.push_back({.kind = TaskKind::kExperts,
                            .lane = {0, LaneKind::kCompute},
                            .layer = 0,
                            .after = {1},
                            .work = schedule.tasks[0].work});
  const auto fit = [&](double computes_from) {
    const SampledStep step{
        .schedule = &schedule,
        .sizes = NothingSized,
        .timelines = {{{{0, 5e-3}, {5e-3, 9e-3}, {0, 5e-3}, {5e-3, 25e-3}, {computes_from, 0.05}}}},
        .states = {{}}};
    return FitStepCosts(std::vector(3, step), {4e10, 1e12}, {.validates = false}).exchange;
  };
  EXPECT_NEAR(fit(9e-3).SecondsOf(1e6), 2e-2, 1e-9);
  EXPECT_EQ(fit(6e-3).SecondsOf(1e6), 0) << "it computed while it sent";
}

TEST(FitStepCosts, OfAPlanTakesExchangesWithComputationBesideThem) {
  const Schedule schedule = TwoRanks(/*overlaps=*/true);
  const SampledStep step{.schedule = &schedule,
                         .sizes = NothingSized,
                         .timelines = {{{{0, 1e-2}, {0, 8e-3}, {0, 1e-2}, {1e-3, 9e-3}}}},
                         .states = {{}}};
  const std::vector<SampledStep> steps(3, step);
  const ReferenceSpeed reference{4e10, 1e12};
  const StepCosts of_all = FitStepCosts(steps, reference, {.validates = false});
  EXPECT_EQ(of_all.exchange.SecondsOf(1e6), 0) << "nobody waited for it";
  const StepCosts of_plan =
      FitStepCosts(steps, reference, {.validates = false, .is_of_plan = true});
  EXPECT_TRUE(of_plan.exchange.is_of_plan);
  EXPECT_NEAR(of_plan.exchange.SecondsOf(1e6), 8e-3, 1e-9);
}

}  // namespace
}  // namespace convene::cost
