#include "cost/fit_step_costs.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <iterator>
#include <optional>
#include <vector>

#include "cost/two_ranks_test.h"

namespace convene::cost {
namespace {

using schedule::LaneKind;
using schedule::Schedule;
using schedule::TaskKind;

// Steps of experts that have five loads at each of six intensities, on ranks of which the second
// may be slower. With `scatters` two loads in five take twice as long, on each rank other ones.
class StepsOfExperts {
 public:
  StepsOfExperts(int num_ranks, const MachineState& second, bool scatters) {
    const double intensities[] = {1, 2, 4, 100, 400, 1600};
    for (size_t row = 0; row < std::size(intensities); ++row) {
      for (size_t column = 0; column < kNumLoads; ++column) {
        const double bytes = 1e6 * (1 + 0.1 * static_cast<double>(column));
        Schedule& schedule = schedules_.emplace_back(Schedule{.num_ranks = num_ranks});
        schedule::Timeline& timeline = timelines_.emplace_back();
        for (int rank = 0; rank < num_ranks; ++rank) {
          const double flops = intensities[row] * bytes;
          schedule.tasks.push_back({.kind = TaskKind::kExperts,
                                    .lane = {rank, LaneKind::kCompute},
                                    .layer = 0,
                                    .work = {.flops = schedule::Constant(flops),
                                             .memory_bytes = schedule::Constant(bytes)}});
          const MachineState slow = rank == 1 ? second : MachineState();
          const bool waits = flops < 10 * bytes;
          const size_t turn = row + column + 2 * static_cast<size_t>(rank);
          const bool is_slow = scatters && turn % kNumLoads < 2;
          timeline.tasks.push_back({0, (waits ? slow.memory : slow.compute) * (is_slow ? 2 : 1) *
                                           std::max(bytes / 1e10, flops / 1e11)});
        }
      }
    }
  }

  StepCosts Fit() const {
    std::vector<SampledStep> steps;
    for (size_t i = 0; i < schedules_.size(); ++i) {
      steps.push_back({.schedule = &schedules_[i],
                       .sizes = NothingSized,
                       .timelines = {timelines_[i]},
                       .states = {{}},
                       .fold = static_cast<int>(i)});
    }
    return FitStepCosts(steps, {.read_bytes_per_second = 1e10, .dot_operations_per_second = 1e11});
  }

  // Of the rank's tasks, the mean of measured / predicted.
  double MeanRatio(const StepCosts& costs, int rank) const {
    double sum = 0;
    for (size_t i = 0; i < schedules_.size(); ++i) {
      const auto task = static_cast<size_t>(rank);
      sum += timelines_[i].tasks[task].seconds() /
             costs.TaskSeconds(*costs.CostOf(TaskKind::kExperts), rank,
                               PartsOf(schedules_[i].tasks[task], NothingSized));
    }
    return sum / static_cast<double>(schedules_.size());
  }

 private:
  static constexpr size_t kNumLoads = 5;

  std::vector<Schedule> schedules_;
  std::vector<schedule::Timeline> timelines_;
};

// Experts of few rows wait for memory, those of many for the cores: of each rank both are found.
TEST(FitStepCosts, FindsHowSlowMemoryAndCoresOfEachRankAre) {
  const auto fitted = [](const MachineState& second) {
    return StepsOfExperts(2, second, /*scatters=*/false).Fit();
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

// The median of times that scatter is less than their mean, which costs are: of all ranks alike.
TEST(FitStepCosts, TimesThatScatterMakeNoRankUnlikeTheOthers) {
  for (const int num_ranks : {1, 2, 3}) {
    const StepsOfExperts steps(num_ranks, {}, /*scatters=*/true);
    const StepCosts costs = steps.Fit();
    EXPECT_TRUE(costs.rank_states.empty()) << num_ranks;
    for (int rank = 0; rank < num_ranks; ++rank) {
      EXPECT_NEAR(steps.MeanRatio(costs, rank), 1, 0.1) << rank << " of " << num_ranks;
    }
  }
}

TEST(FitStepCosts, UnlikeRanksWhoseTimesScatterAreRightInTheMean) {
  const StepsOfExperts steps(2, {.memory = 3, .compute = 2}, /*scatters=*/true);
  const StepCosts costs = steps.Fit();
  ASSERT_EQ(costs.rank_states.size(), 2u);
  EXPECT_NEAR(costs.rank_states[0].memory + costs.rank_states[1].memory, 2, 1e-9);
  EXPECT_NEAR(costs.rank_states[0].compute + costs.rank_states[1].compute, 2, 1e-9);
  EXPECT_NEAR(costs.rank_states[1].memory / costs.rank_states[0].memory, 3, 0.5);
  EXPECT_NEAR(costs.rank_states[1].compute / costs.rank_states[0].compute, 2, 0.3);
  for (int rank = 0; rank < 2; ++rank) EXPECT_NEAR(steps.MeanRatio(costs, rank), 1, 0.15) << rank;
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
  // Each kind stands beside a line: these times are on one.
  const TaskKind exchange = schedules[0].tasks[1].kind;
  for (const TaskKind kind : {TaskKind::kExperts, exchange}) {
    const std::optional<HeldOut>& held_out = costs.held_out[static_cast<size_t>(kind)];
    ASSERT_TRUE(held_out && held_out->has_line()) << schedule::Name(kind);
    EXPECT_LT(held_out->line_median_error, 1e-3);
  }
  EXPECT_TRUE(costs.exchange_held_out->has_line());
  // The same points are held out of it as of the costs: through one alone it misses the other.
  steps.pop_back();
  const StepCosts of_two = FitStepCosts(steps, {4e10, 1e12});
  EXPECT_GT(of_two.held_out[static_cast<size_t>(TaskKind::kExperts)]->line_median_error, 0.1);
  steps.pop_back();
  const StepCosts of_one = FitStepCosts(steps, {4e10, 1e12});
  EXPECT_FALSE(of_one.held_out[static_cast<size_t>(TaskKind::kExperts)]->has_line());
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

// Attention over a cache in int8 has scores of its own, and says nothing of other tasks.
TEST(FitStepCosts, StepsWithAnInt8CacheTellOfTheirAttentionAlone) {
  std::vector<Schedule> schedules;
  std::vector<schedule::Timeline> timelines;
  const auto add = [&](double context, double seconds_per_score) {
    const schedule::Size keys{.kind = schedule::SizeKind::kKeys};
    const schedule::Size cached{.kind = schedule::SizeKind::kCached};
    schedules.push_back(Schedule{.num_ranks = 1});
    schedules.back().tasks = {{.kind = TaskKind::kAttention,
                               .lane = {0, LaneKind::kCompute},
                               .layer = 0,
                               .work = {.flops = {{2e6}, {4e3 * context, keys}},
                                        .memory_bytes = {{1e6}, {1e3 * context, cached}}}},
                              {.kind = TaskKind::kRoute,
                               .lane = {0, LaneKind::kCompute},
                               .layer = 0,
                               .after = {0},
                               .work = {.flops = {{1e5}}, .memory_bytes = {{1e5}}}}};
    const double attending = 1e-4 + 4e3 * context * seconds_per_score;
    timelines.push_back({{{0, attending}, {attending, attending + 1e-5 + 1e-6 * context}}});
  };
  const Sizes one = [](const schedule::Size&) { return 1.0; };
  const int num_each = 14;
  for (int i = 0; i < num_each; ++i) add(100 * (i + 1), 1e-9);
  for (int i = 0; i < num_each; ++i) add(100 * (i + 1), 3e-9);
  std::vector<SampledStep> steps;
  const auto fit = [&](int num_steps) {
    steps.clear();
    for (int i = 0; i < num_steps; ++i) {
      steps.push_back({.schedule = &schedules[static_cast<size_t>(i)],
                       .sizes = one,
                       .timelines = {timelines[static_cast<size_t>(i)]},
                       .states = {{}},
                       .int8_kv = i >= num_each,
                       .fold = i});
    }
    return FitStepCosts(steps, {.read_bytes_per_second = 1e10, .dot_operations_per_second = 1e11});
  };
  const StepCosts usual = fit(num_each);
  EXPECT_FALSE(usual.int8_attention);
  StepCosts both = fit(2 * num_each);
  EXPECT_EQ(both.tasks, usual.tasks);
  ASSERT_TRUE(both.int8_attention && both.int8_attention_held_out);
  EXPECT_EQ(both.int8_attention_held_out->num_points, num_each);
  const TaskParts parts = PartsOf(schedules.back().tasks[0], one);
  EXPECT_NEAR(both.int8_attention->Seconds(parts), 1e-4 + 3e-9 * parts.score_flops, 1e-4);
  const double of_bf16 = both.CostOf(TaskKind::kAttention)->Seconds(parts);
  both.SwapCaches();
  EXPECT_NEAR(both.CostOf(TaskKind::kAttention)->Seconds(parts) - of_bf16, 2e-9 * parts.score_flops,
              0.05 * of_bf16);
}

}  // namespace
}  // namespace convene::cost
