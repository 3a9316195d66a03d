#include "cost/refine_costs.h"

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

namespace convene::cost {
namespace {

using schedule::LaneKind;
using schedule::TaskKind;

// Costs of tasks by their groups, and of exchanges by their bytes.
StepCosts CostsToRefine() {
  StepCosts costs{.num_ranks = 2, .weights = "int8"};
  for (const TaskKind kind : {TaskKind::kExperts, TaskKind::kAttention}) {
    costs.tasks[static_cast<size_t>(kind)].emplace().per_group = 1e-3;
  }
  costs.exchange.seconds = {.at = {1, 1e6}, .value = {1e-4, 1e-2}};
  return costs;
}

// A step of some layers, whose experts took so many times as long as costs say, attention as long
// as they say, and exchanges twice as long.
struct StepToRefine {
  schedule::Schedule schedule{.num_ranks = 2};
  schedule::Timeline timeline;
  std::vector<TaskParts> parts;

  StepToRefine(const std::vector<double>& factors, bool chunked) {
    double now = 0;
    for (size_t layer = 0; layer < factors.size(); ++layer) {
      for (const TaskKind kind : {TaskKind::kAttention, TaskKind::kExperts}) {
        const double factor = kind == TaskKind::kExperts ? factors[layer] : 1;
        for (int rank = 0; rank < 2; ++rank) {
          const double groups = 1 + static_cast<double>(layer);
          Add({.kind = kind, .lane = {rank, LaneKind::kCompute}}, {.groups = groups}, now,
              factor * groups * 1e-3);
        }
        now += 1;
      }
      for (int rank = 0; rank < 2; ++rank) {
        Add({.kind = TaskKind::kDispatch,
             .lane = {rank, LaneKind::kSend},
             .chunk = chunked ? 1 : -1,
             .collective = static_cast<int>(layer)},
            {.link_bytes = 5e5}, now, 2e-2);
      }
      now += 1;
    }
  }

  void Add(const schedule::Task& task, const TaskParts& of_task, double start, double seconds) {
    schedule.tasks.push_back(task);
    timeline.tasks.push_back({start, start + seconds});
    parts.push_back(of_task);
  }

  TracedCosts traced() const { return {&schedule, &timeline, parts}; }
};

TEST(RefineStepCosts, FindsByHowMuchAKindOfTaskTookLonger) {
  const StepToRefine step({1.5, 1.5, 1.4, 9, 1.6}, false);
  const std::vector<TracedCosts> steps = {step.traced()};
  const Refinement refinement = RefineStepCosts(CostsToRefine(), steps, 0);
  const auto& experts = refinement.tasks[static_cast<size_t>(TaskKind::kExperts)];
  ASSERT_TRUE(experts.has_value());
  EXPECT_EQ(experts->num_tasks, 10);
  EXPECT_GT(experts->factor, 1.4);
  EXPECT_TRUE(experts->is_used);
  EXPECT_LT(experts->error_after, experts->error_before);
  const auto& attention = refinement.costs.tasks[static_cast<size_t>(TaskKind::kAttention)];
  EXPECT_NEAR(attention->per_group, 1e-3, 1e-12);
  ASSERT_TRUE(refinement.exchange.has_value());
  EXPECT_NEAR(refinement.exchange->factor, 2, 1e-9);
  EXPECT_NEAR(refinement.costs.exchange.SecondsOf(1e6), 2e-2, 1e-9);
}

// Attention in pieces has the cost of the whole, and corrects it.
TEST(RefineStepCosts, PiecesOfAttentionCorrectWhatTheyArePricedBy) {
  StepToRefine step({}, false);
  for (int layer = 0; layer < 4; ++layer) {
    for (const TaskKind kind : {TaskKind::kPreAttention, TaskKind::kAttend,
                                TaskKind::kPostAttention, TaskKind::kCrossStore}) {
      step.Add({.kind = kind, .layer = layer}, {.groups = 2}, layer, 3 * 2e-3);
    }
  }
  const std::vector<TracedCosts> steps = {step.traced()};
  const Refinement refinement = RefineStepCosts(CostsToRefine(), steps, 0);
  const auto& attention = refinement.tasks[static_cast<size_t>(TaskKind::kAttention)];
  ASSERT_TRUE(attention.has_value());
  EXPECT_EQ(attention->num_tasks, 16);
  EXPECT_TRUE(attention->is_used);
  EXPECT_NEAR(refinement.costs.CostOf(TaskKind::kAttend)->per_group, 3e-3, 1e-12);
}

TEST(RefineStepCosts, LowersTheErrorOnStepsThatWereNotTraced) {
  const StepToRefine traced({1.5, 1.4, 1.6, 1.5}, false);
  const StepToRefine other({1.55, 1.45, 1.5, 1.5, 1.5, 1.6}, true);
  const std::vector<TracedCosts> steps = {traced.traced()};
  const StepCosts refined = RefineStepCosts(CostsToRefine(), steps, 0).costs;
  const auto error = [&](const StepCosts& costs) {
    double sum = 0;
    for (size_t id = 0; id < other.schedule.tasks.size(); ++id) {
      const auto& cost = costs.tasks[static_cast<size_t>(other.schedule.tasks[id].kind)];
      if (!cost) continue;
      sum += std::abs(cost->Seconds(other.parts[id]) - other.timeline.tasks[id].seconds());
    }
    return sum;
  };
  EXPECT_LT(error(refined), error(CostsToRefine()) / 4);
}

TEST(RefineStepCosts, LeavesAloneWhatTheStepsDoNotAgreeOn) {
  const StepToRefine slow({2, 2, 2, 2}, false);
  const StepToRefine fast({0.5, 0.5, 0.5, 0.5}, false);
  const std::vector<TracedCosts> steps = {slow.traced(), fast.traced()};
  const Refinement refinement = RefineStepCosts(CostsToRefine(), steps, 0);
  const auto& experts = refinement.tasks[static_cast<size_t>(TaskKind::kExperts)];
  ASSERT_TRUE(experts.has_value());
  EXPECT_FALSE(experts->is_used);
  EXPECT_EQ(refinement.costs.tasks[static_cast<size_t>(TaskKind::kExperts)],
            CostsToRefine().tasks[static_cast<size_t>(TaskKind::kExperts)]);
}

TEST(RefineStepCosts, ExchangesBesideComputationAndTasksBesideThemSayNothing) {
  const StepToRefine step({1.5, 1.5, 1.5, 1.5}, true);
  const std::vector<TracedCosts> steps = {step.traced()};
  const Refinement refinement = RefineStepCosts(CostsToRefine(), steps, 0);
  EXPECT_FALSE(refinement.exchange.has_value());
  EXPECT_FALSE(refinement.tasks[static_cast<size_t>(TaskKind::kExperts)].has_value());
  EXPECT_TRUE(RefineStepCosts(CostsToRefine(), {}, 0).costs == CostsToRefine());
}

TEST(RefineStepCosts, WeightsThatMayComeFromCachesSayNothingOfThoseFromMemory) {
  StepToRefine step({1.5, 1.5, 1.5, 1.5}, false);
  for (TaskParts& parts : step.parts) parts.weight_bytes = 1e6;
  const auto all = static_cast<uint64_t>(step.parts.size()) * 1'000'000;
  const std::vector<TracedCosts> steps = {step.traced()};
  const Refinement small = RefineStepCosts(CostsToRefine(), steps, all);
  EXPECT_TRUE(small.fits_caches);
  EXPECT_EQ(small.costs.tasks, CostsToRefine().tasks);
  EXPECT_TRUE(small.exchange.has_value());
  const Refinement large = RefineStepCosts(CostsToRefine(), steps, all - 1);
  EXPECT_FALSE(large.fits_caches);
  EXPECT_TRUE(large.tasks[static_cast<size_t>(TaskKind::kExperts)].has_value());
}

// A shared expert, say, while the exchange is under way: nobody waits for it.
TEST(RefineStepCosts, AnExchangeWithATaskBesideItSaysNothing) {
  StepToRefine step({1, 1, 1, 1}, false);
  for (size_t id = 0; id < step.schedule.tasks.size(); ++id) {
    if (step.schedule.tasks[id].kind != TaskKind::kDispatch) continue;
    const double start = step.timeline.tasks[id].start;
    step.Add({.kind = TaskKind::kAttention, .lane = {0, LaneKind::kCompute}}, {.groups = 1}, start,
             1e-3);
  }
  const std::vector<TracedCosts> steps = {step.traced()};
  EXPECT_FALSE(RefineStepCosts(CostsToRefine(), steps, 0).exchange.has_value());
}

}  // namespace
}  // namespace convene::cost
