#include "engine/step_plan.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <random>

#include "engine/scheduler.h"

namespace convene::engine {
namespace {

using testing::ElementsAre;

TEST(PlanSteps, PutsShortSequencesTogether) {
  const std::vector<int> lengths = {60, 0, 30, 20};
  EXPECT_THAT(
      PlanSteps(lengths, {.max_step_tokens = 100, .num_kv_blocks = 8}),
      ElementsAre(ElementsAre(StepPart{.sequence_idx = 0, .num_tokens = 60},
                              StepPart{.sequence_idx = 2, .num_tokens = 30, .first_block = 1}),
                  ElementsAre(StepPart{.sequence_idx = 3, .num_tokens = 20})));
}

TEST(PlanSteps, CutsWhatIsLongerThanAStepAndFillsItsLastOne) {
  const std::vector<int> lengths = {250, 40};
  EXPECT_THAT(
      PlanSteps(lengths, {.max_step_tokens = 100, .num_kv_blocks = 8}),
      ElementsAre(ElementsAre(StepPart{.num_tokens = 100}),
                  ElementsAre(StepPart{.first_position = 100, .num_tokens = 100}),
                  ElementsAre(StepPart{.first_position = 200, .num_tokens = 50},
                              StepPart{.sequence_idx = 1, .num_tokens = 40, .first_block = 4})));
}

TEST(PlanSteps, RunsLongSequencesOfSeveralGroupsSideBySide) {
  const std::vector<int> lengths = {200, 200, 20};
  EXPECT_THAT(
      PlanSteps(lengths, {.max_step_tokens = 100, .num_kv_blocks = 8, .num_groups = 2}),
      ElementsAre(
          ElementsAre(StepPart{.num_tokens = 100},
                      StepPart{.sequence_idx = 1, .group = 1, .num_tokens = 100}),
          ElementsAre(
              StepPart{.first_position = 100, .num_tokens = 100},
              StepPart{.sequence_idx = 1, .group = 1, .first_position = 100, .num_tokens = 100}),
          ElementsAre(StepPart{.sequence_idx = 2, .num_tokens = 20})));
}

TEST(PlanWholeSteps, SpreadsSequencesOverGroupsInOrder) {
  const std::vector<int> lengths = {80, 30, 30, 70, 10};
  EXPECT_THAT(
      PlanWholeSteps(lengths, {.max_step_tokens = 100, .num_kv_blocks = 8, .num_groups = 2}),
      ElementsAre(
          ElementsAre(StepPart{.sequence_idx = 0, .num_tokens = 80},
                      StepPart{.sequence_idx = 1, .group = 1, .num_tokens = 30},
                      StepPart{.sequence_idx = 2, .group = 1, .num_tokens = 30, .first_block = 1}),
          ElementsAre(StepPart{.sequence_idx = 3, .num_tokens = 70},
                      StepPart{.sequence_idx = 4, .group = 1, .num_tokens = 10})));
}

// Whatever the lengths: every token once, in order, within the limits, no block of two sequences.
TEST(PlanSteps, ComputesEveryTokenOnceWithinTheLimits) {
  std::mt19937 random(5);
  for (int round = 0; round < 200; ++round) {
    const auto below = [&](int end) { return static_cast<int>(random() % end); };
    const StepLimits limits{.max_step_tokens = 1 + below(150),
                            .num_kv_blocks = 4 + below(5),
                            .num_groups = 1 + below(4)};
    std::vector<int> lengths(below(12));
    for (int& length : lengths) {
      length = below(limits.num_kv_blocks * device::kKvBlockTokens + 1);
    }
    std::vector<int> done(lengths.size());
    std::vector<int> first_block(lengths.size());
    std::vector<std::map<int, int>> owners(limits.num_groups);  // of blocks, by group
    for (const PlannedStep& step : PlanSteps(lengths, limits)) {
      ASSERT_FALSE(step.empty());
      std::vector<int> num_tokens(limits.num_groups);
      for (const StepPart& part : step) {
        ASSERT_EQ(part.first_position, done[part.sequence_idx]);
        ASSERT_GT(part.num_tokens, 0);
        if (part.first_position == 0) first_block[part.sequence_idx] = part.first_block;
        ASSERT_EQ(part.first_block, first_block[part.sequence_idx]);
        done[part.sequence_idx] += part.num_tokens;
        num_tokens[part.group] += part.num_tokens;
        ASSERT_LE(num_tokens[part.group], limits.max_step_tokens);
        const int num_blocks = Scheduler::BlocksFor(done[part.sequence_idx]);
        ASSERT_LE(part.first_block + num_blocks, limits.num_kv_blocks);
        for (int i = 0; i < num_blocks; ++i) {
          int& owner = owners[part.group].try_emplace(part.first_block + i, -1).first->second;
          // A block changes hands only when its new owner begins.
          if (owner != part.sequence_idx) {
            ASSERT_TRUE(part.first_position == 0 || owner < 0 || done[owner] == lengths[owner]);
          }
          owner = part.sequence_idx;
        }
      }
    }
    EXPECT_EQ(done, lengths);
  }
}

}  // namespace
}  // namespace convene::engine
