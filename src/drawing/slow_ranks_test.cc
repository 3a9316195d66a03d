#include "drawing/slow_ranks.h"

#include <gtest/gtest.h>

#include <array>
#include <string>
#include <vector>

namespace convene::drawing {
namespace {

using schedule::TaskKind;

constexpr int kTasks = 8;  // of a kind on each rank

// Ranks 0 and 1 have attention, the others the experts. Of a kind of task a FLOP takes 1 s, a byte
// 2 s; `factors`: how much longer each rank takes. In small steps FLOPs are few.
TracedStep StepOf(const std::string& name, const std::array<double, 4>& factors, int seed = 1) {
  TracedStep step{.name = name};
  step.schedule.num_ranks = 4;
  for (int rank = 0; rank < 4; ++rank) {
    for (int i = 0; i < kTasks; ++i) {
      // Routing gives each rank and layer other work.
      const double flops = 10 + (7 * i + 3 * rank + seed) % 11;
      const double bytes = 1 + (5 * i + 2 * rank + seed) % 7;
      step.schedule.tasks.push_back({.kind = rank < 2 ? TaskKind::kAttention : TaskKind::kExperts,
                                     .lane = {rank, schedule::LaneKind::kCompute},
                                     .layer = i,
                                     .work = {.flops = schedule::Constant(flops),
                                              .memory_bytes = schedule::Constant(bytes)}});
      step.measured.tasks.push_back({0, factors[static_cast<size_t>(rank)] * (flops + 2 * bytes)});
    }
  }
  return step;
}

TEST(SlowRanks, AreNoneWhereAllTakeAsLongForTheirWork) {
  EXPECT_TRUE(FindSlowRanks(std::vector{StepOf("prefill, 8 tokens", {1, 1, 1, 1})}).empty());
  EXPECT_TRUE(FindSlowRanks(std::vector{StepOf("prefill, 8 tokens", {1, 1.2, 1.2, 1})}).empty());
  EXPECT_TRUE(FindSlowRanks({}).empty());
}

TEST(SlowRanks, OfEitherRoleAreNamedWithWhatTheyTakeLonger) {
  const std::vector<SlowRank> slow =
      FindSlowRanks(std::vector{StepOf("prefill, 8 tokens", {1, 4, 2, 1})});
  ASSERT_EQ(slow.size(), 2u);
  EXPECT_EQ(slow[0].rank, 1);
  EXPECT_EQ(slow[0].role, "attention");
  EXPECT_NEAR(slow[0].ratio, 4, 1e-6);
  EXPECT_EQ(slow[1].rank, 2);
  EXPECT_EQ(slow[1].role, "experts");
  EXPECT_EQ(slow[1].steps, "prefill");
  EXPECT_NEAR(slow[1].ratio, 2, 1e-6);
}

// Where few rows visit each expert the weights that are read decide, and where many do FLOPs, too.
TEST(SlowRanks, WithHalfOfTheFlopsForAsManyBytesNobodyIsSlow) {
  TracedStep step = StepOf("decode, 4 tokens", {1, 1, 1, 1});
  for (size_t id = 0; id < step.schedule.tasks.size(); ++id) {
    schedule::Task& task = step.schedule.tasks[id];
    const double bytes = 1 + static_cast<double>(id % 5);
    const double flops = (task.lane.rank == 2 ? 1 : 2) * (1 + static_cast<double>(id % 3));
    task.work = {.flops = schedule::Constant(flops), .memory_bytes = schedule::Constant(bytes)};
    step.measured.tasks[id] = {0, 2 * bytes};
  }
  EXPECT_TRUE(FindSlowRanks(std::vector{step}).empty());
}

TEST(SlowRanks, TasksThatWereHeldUpMakeNobodySlow) {
  TracedStep step = StepOf("decode, 4 tokens", {1, 1, 1, 1});
  // Of rank 2 two, and of rank 3 another two.
  for (const size_t id : {16, 20, 25, 29}) step.measured.tasks[id].end *= 30;
  EXPECT_TRUE(FindSlowRanks(std::vector{step}).empty());
  // Nor do they hide who is.
  for (size_t id = 16; id < 24; ++id) step.measured.tasks[id].end *= 2;
  const std::vector<SlowRank> slow = FindSlowRanks(std::vector{step});
  ASSERT_EQ(slow.size(), 1u);
  EXPECT_EQ(slow[0].rank, 2);
}

// As under a control group's quota: what is computed within it is as fast as elsewhere.
TEST(SlowRanks, AreNamedWhereSomeOfTheirTasksAreStoppedAndHalfPass) {
  TracedStep step = StepOf("prefill, 8 tokens", {1, 1, 1, 1});
  for (size_t id = 16; id < 24; id += 2) step.measured.tasks[id].end *= 4;
  const std::vector<SlowRank> slow = FindSlowRanks(std::vector{step});
  ASSERT_EQ(slow.size(), 1u);
  EXPECT_EQ(slow[0].rank, 2);
  double seconds = 0;
  double expected = 0;
  for (size_t id = 16; id < 24; ++id) {
    seconds += step.measured.tasks[id].seconds();
    expected += step.measured.tasks[id].seconds() / (id % 2 == 0 ? 4 : 1);
  }
  EXPECT_GT(slow[0].ratio, 1.5);                 // in the median it is none
  EXPECT_LT(slow[0].ratio, seconds / expected);  // without its worst task
}

TEST(SlowRanks, OneTaskThatTakesAnAgeMakesNobodySlowNorDoTwo) {
  TracedStep step = StepOf("prefill, 8 tokens", {1, 1, 1, 1});
  step.measured.tasks[16].end *= 100;
  EXPECT_TRUE(FindSlowRanks(std::vector{step}).empty());
  step.measured.tasks[19].end *= 100;
  EXPECT_TRUE(FindSlowRanks(std::vector{step}).empty());
}

TEST(SlowRanks, WhereAllAreStoppedAlikeNobodyIsSlow) {
  TracedStep step = StepOf("prefill, 8 tokens", {1, 1, 1, 1});
  for (size_t id = 16; id < 32; id += 2) step.measured.tasks[id].end *= 4;
  EXPECT_TRUE(FindSlowRanks(std::vector{step}).empty());
}

TEST(SlowRanks, AreNotHiddenByTasksOfNextToNothing) {
  TracedStep step = StepOf("prefill, 8 tokens", {1, 1, 1, 3});
  for (int rank = 2; rank < 4; ++rank) {
    for (int i = 0; i < 5 * kTasks; ++i) {
      step.schedule.tasks.push_back({.kind = TaskKind::kReduce,
                                     .lane = {rank, schedule::LaneKind::kCompute},
                                     .layer = i,
                                     .work = {.memory_bytes = schedule::Constant(0.01)}});
      step.measured.tasks.push_back({0, 0.02});
    }
  }
  const std::vector<SlowRank> slow = FindSlowRanks(std::vector{step});
  ASSERT_EQ(slow.size(), 1u);
  EXPECT_EQ(slow[0].rank, 3);
  EXPECT_NEAR(slow[0].ratio, 3, 1e-6);
}

TEST(SlowRanks, AreJudgedByAllStepsOfAKindTogether) {
  // Each of three steps has another slow rank, and over all nobody is.
  const std::vector<TracedStep> turns = {StepOf("decode, 4 tokens", {1, 1, 2, 1}, 1),
                                         StepOf("decode, 5 tokens", {1, 1, 1, 2}, 2),
                                         StepOf("decode, 6 tokens", {1, 1, 1, 1}, 3)};
  EXPECT_TRUE(FindSlowRanks(turns).empty());
  const std::vector<SlowRank> slow = FindSlowRanks(std::vector{
      StepOf("prefill, 64 tokens", {1, 1, 1, 1}), StepOf("decode, 4 tokens", {1, 1, 1, 3}, 1),
      StepOf("decode, 5 tokens", {1, 1, 1, 3}, 2)});
  ASSERT_EQ(slow.size(), 1u);
  EXPECT_EQ(slow[0].steps, "decode");
  EXPECT_EQ(slow[0].rank, 3);
}

// Each step of a kind of its own, as a file that nobody wrote may have them: no step is looked at
// for the kinds of the others. The names' order is that of their first steps.
TEST(SlowRanks, AreFoundAmongManyKindsOfSteps) {
  std::vector<TracedStep> steps;
  for (int i = 0; i < 50'000; ++i) steps.push_back({.name = std::to_string(i)});
  steps.push_back(StepOf("prefill, 8 tokens", {1, 1, 1, 3}));
  steps.push_back(StepOf("decode, 4 tokens", {1, 1, 1, 3}));
  steps.push_back(StepOf("prefill, 9 tokens", {1, 1, 1, 3}));
  const std::vector<SlowRank> slow = FindSlowRanks(steps);
  ASSERT_EQ(slow.size(), 2u);
  EXPECT_EQ(slow[0].steps, "prefill");
  EXPECT_EQ(slow[1].steps, "decode");
}

TEST(SlowRanks, OnesThatAreAloneInTheirRoleOrHaveBothAreComparedWithNobody) {
  TracedStep step = StepOf("prefill, 8 tokens", {1, 1, 1, 4});
  std::erase_if(step.schedule.tasks, [](const auto& task) { return task.lane.rank == 2; });
  step.measured.tasks.erase(step.measured.tasks.begin() + 16, step.measured.tasks.begin() + 24);
  for (schedule::Task& task : step.schedule.tasks) task.lane.rank = std::min(task.lane.rank, 2);
  step.schedule.num_ranks = 3;
  EXPECT_TRUE(FindSlowRanks(std::vector{step}).empty());
  TracedStep whole = StepOf("prefill, 8 tokens", {1, 1, 1, 4});
  for (schedule::Task& task : whole.schedule.tasks) task.kind = TaskKind::kExperts;
  EXPECT_TRUE(FindSlowRanks(std::vector{whole}).empty());
}

}  // namespace
}  // namespace convene::drawing
