// The search's pass over the most tokens of a step: where it varies them, and what it leaves alone.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "planner/asked_question_test.h"
#include "planner/plan_search_test.h"

namespace convene::planner {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

// Prompts of many small steps, each of which reads the weights.
constexpr int kUsual = 16;

struct AskedOfLongPrompts : Asked {
  AskedOfLongPrompts() : Asked(1e9, {1}) {
    workload = {.requests = {{2048, 4}}, .batch = 2};
    question.step_tokens = kUsual;
    question.constraints.keeps_step_tokens = false;
  }
};

int LargestSteps(const PlanAnswer& answer) {
  int most = 0;
  for (const Candidate& one : answer.candidates) most = std::max(most, one.plan.step_tokens);
  return most;
}

TEST(StepSizes, LongPromptsGetStepsOfMoreTokens) {
  AskedOfLongPrompts asked;
  const PlanAnswer answer = Search(asked);
  const Candidate& chosen = ChosenOf(answer);
  ASSERT_GT(chosen.plan.step_tokens, kUsual) << Describe(chosen);
  EXPECT_LE(chosen.plan.step_tokens, 2 * 2048) << "there are no more tokens";
  EXPECT_THAT(Describe(chosen), HasSubstr("steps of at most "));
  const double score = chosen.figures->score;
  // As the question with such steps has it.
  asked.question.step_tokens = chosen.plan.step_tokens;
  asked.question.constraints.keeps_step_tokens = true;
  const PlanAnswer given = Search(asked);
  EXPECT_EQ(ChosenOf(given).plan.step_tokens, 0);
  EXPECT_NEAR(ChosenOf(given).figures->score, score, 1e-9 * score);
  asked.question.step_tokens = kUsual;
  EXPECT_GT(ChosenOf(Search(asked)).figures->score, score);
}

// Of more sequences than a step has tokens: it has one of each, in prices as in what is executed.
TEST(StepSizes, AStepHasRoomForATokenOfEachSequence) {
  AskedOfLongPrompts asked;
  asked.workload = {.requests = {{64, 4}}, .batch = 8 * kUsual};
  asked.question.passes_off = {"step_sizes"};
  const double few = ChosenOf(Search(asked)).figures->score;
  asked.question.step_tokens = 8 * kUsual;
  EXPECT_EQ(ChosenOf(Search(asked)).figures->score, few);
  asked.question.step_tokens = 16 * kUsual;
  EXPECT_LT(ChosenOf(Search(asked)).figures->score, few);
  // Steps that were asked for are not made longer: a load refuses such a batch, too.
  asked.question.constraints.keeps_step_tokens = true;
  asked.question.step_tokens = 8 * kUsual;
  EXPECT_EQ(ChosenOf(Search(asked)).figures->score, few);
  asked.question.step_tokens = 8 * kUsual - 1;
  EXPECT_THAT(ErrorOf(asked), HasSubstr("raise --chunk"));
}

TEST(StepSizes, ShorterStepsAreARemedyWhereTheirRowsHaveNoMemory) {
  AskedOfLongPrompts asked;
  asked.question.step_tokens = 512;
  asked.question.memory_of = [&asked](const RankSetup&, const plan::Plan& plan,
                                      int batch) -> Result<RankMemory> {
    const int tokens = plan.step_tokens_for(batch, asked.question.step_tokens);
    return RankMemory{.working_bytes = static_cast<uint64_t>(tokens)};
  };
  asked.question.memory_per_rank = [](int) { return uint64_t{200}; };
  EXPECT_THAT(ErrorOf(asked), HasSubstr(" or --chunk 128"));
  // Where each sequence has a token in a step, they are not to be had.
  asked.workload.batch = 300;
  EXPECT_THAT(ErrorOf(asked), Not(HasSubstr("--chunk")));
}

TEST(StepSizes, StepsThatWereGivenStay) {
  AskedOfLongPrompts asked;
  asked.question.constraints.keeps_step_tokens = true;
  EXPECT_EQ(LargestSteps(Search(asked)), 0);
  asked.question.constraints.keeps_step_tokens = false;
  asked.question.passes_off = {"step_sizes"};
  EXPECT_EQ(LargestSteps(Search(asked)), 0);
}

// Prompts that fit in a step gain nothing, and of a stream nobody knows who waits for a long one.
TEST(StepSizes, ShortPromptsAndStreamsKeepTheirs) {
  AskedOfLongPrompts asked;
  asked.workload = {.requests = {{8, 4}}, .batch = 2};
  EXPECT_EQ(LargestSteps(Search(asked)), 0);
  asked.workload = {.requests = {{2048, 4}}, .arrival_rate = 0.01};
  EXPECT_EQ(LargestSteps(Search(asked)), 0);
}

TEST(StepSizes, StepsForWhichThereIsNoMemoryAreLeft) {
  AskedOfLongPrompts asked;
  asked.question.memory_of = [](const RankSetup&, const plan::Plan& plan,
                                int) -> Result<RankMemory> {
    return RankMemory{.working_bytes = static_cast<uint64_t>(plan.step_tokens_or(kUsual))};
  };
  asked.question.memory_per_rank = [](int) { return uint64_t{100}; };
  const PlanAnswer answer = Search(asked);
  EXPECT_EQ(ChosenOf(answer).plan.step_tokens, 64) << Describe(ChosenOf(answer));
  const auto rejected = std::ranges::find_if(
      answer.candidates, [](const Candidate& one) { return one.plan.step_tokens == 128; });
  ASSERT_NE(rejected, answer.candidates.end());
  EXPECT_THAT(rejected->reason, HasSubstr("a rank needs"));
}

// Experts that are read from a disk are read once for each step, and their rows take memory in
// which experts could stay.
TEST(StepSizes, ExpertsOnADiskAreReadLessOftenAndLeaveRoomForMoreRows) {
  AskedOfLongPrompts asked;
  asked.profile.machine.disk_gbps = 1;
  asked.question.memory_of = [](const RankSetup&, const plan::Plan& plan,
                                int) -> Result<RankMemory> {
    const auto experts = static_cast<uint64_t>(plan.experts_in_memory.value_or(24 * 16));
    return RankMemory{.weights_bytes = experts * 100,
                      .working_bytes = static_cast<uint64_t>(plan.step_tokens_or(kUsual))};
  };
  asked.question.memory_per_rank = [](int) { return uint64_t{20'000}; };
  asked.question.experts_that_fit = [](const RankSetup&, const plan::Plan& plan, int,
                                       uint64_t bytes) -> Result<int> {
    return static_cast<int>((bytes - static_cast<uint64_t>(plan.step_tokens_or(kUsual))) / 100);
  };
  const PlanAnswer answer = Search(asked);
  const Candidate& chosen = ChosenOf(answer);
  ASSERT_TRUE(chosen.plan.experts_in_memory) << Describe(chosen);
  EXPECT_GT(chosen.plan.step_tokens, kUsual) << Describe(chosen);
  EXPECT_EQ(*chosen.plan.experts_in_memory, (20'000 - chosen.plan.step_tokens) / 100);
  const auto usual = std::ranges::find_if(answer.candidates, [](const Candidate& one) {
    return one.is_ranked() && one.plan.step_tokens == 0;
  });
  ASSERT_NE(usual, answer.candidates.end());
  EXPECT_LT(chosen.figures->ttft, usual->figures->ttft);
}

}  // namespace
}  // namespace convene::planner
