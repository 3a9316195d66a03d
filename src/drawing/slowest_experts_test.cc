#include "drawing/slowest_experts.h"

#include <gtest/gtest.h>

namespace convene::drawing {
namespace {

using schedule::TaskKind;

struct Work {
  double flops = 0;
  double bytes = 0;
  double seconds = 0;
};

const std::vector<std::string> kRoles = {"attention", "experts", "experts"};

// Rank 0 has attention; of the others the experts' tasks.
TracedStep StepOf(const std::vector<Work>& first, const std::vector<Work>& second) {
  TracedStep step;
  step.schedule.num_ranks = 3;
  const auto add = [&](int rank, const std::vector<Work>& tasks) {
    for (const Work& work : tasks) {
      step.schedule.tasks.push_back({.kind = TaskKind::kExperts,
                                     .lane = {rank, schedule::LaneKind::kCompute},
                                     .layer = 0,
                                     .work = {.flops = schedule::Constant(work.flops),
                                              .memory_bytes = schedule::Constant(work.bytes)}});
      step.measured.tasks.push_back({0, work.seconds});
    }
  };
  add(1, first);
  add(2, second);
  return step;
}

// A byte takes 2 s and a FLOP none, as where few rows visit each expert.
TEST(SlowestExperts, OfFewRowsTheWeightsThatAreReadCount) {
  // Rank 2 has half of the FLOPs of rank 1, but reads as many weights in the same time.
  const auto alike = FindSlowestExperts(
      StepOf({{8, 4, 8}, {6, 2, 4}, {12, 3, 6}}, {{4, 4, 8}, {3, 2, 4}, {5, 3, 6}}), kRoles);
  EXPECT_NEAR(alike.ratio, 1, 1e-9);
  const auto slow = FindSlowestExperts(
      StepOf({{8, 4, 8}, {6, 2, 4}, {12, 3, 6}}, {{4, 4, 12}, {3, 2, 6}, {5, 3, 9}}), kRoles);
  EXPECT_EQ(slow.rank, 2);
  EXPECT_NEAR(slow.ratio, 1.5, 1e-9);
}

// A FLOP takes 1 s and a byte 2 s.
TEST(SlowestExperts, OfManyRowsBothCount) {
  const std::vector<Work> first = {{8, 4, 16}, {6, 2, 10}, {12, 3, 18}};
  EXPECT_NEAR(FindSlowestExperts(StepOf(first, {{80, 4, 88}, {60, 2, 64}}), kRoles).ratio, 1, 1e-9);
  const auto slow = FindSlowestExperts(StepOf(first, {{80, 4, 176}, {60, 2, 128}}), kRoles);
  EXPECT_EQ(slow.rank, 2);
  EXPECT_NEAR(slow.ratio, 2, 1e-9);
}

TEST(SlowestExperts, AreNoneWhereThereIsOneRankWithExpertsOrNothingToDo) {
  EXPECT_EQ(FindSlowestExperts(StepOf({{8, 4, 8}}, {}), kRoles).rank, -1);
  EXPECT_EQ(FindSlowestExperts(StepOf({{0, 0, 8}}, {{0, 0, 9}}), kRoles).rank, -1);
  EXPECT_EQ(FindSlowestExperts(StepOf({{8, 4, 8}}, {{8, 4, 9}}), {"", "", ""}).rank, -1);
}

}  // namespace
}  // namespace convene::drawing
