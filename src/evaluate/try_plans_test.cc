#include "evaluate/try_plans.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <vector>

#include "comm/solo/solo_group.h"

namespace convene::evaluate {
namespace {

using ::testing::HasSubstr;

using Scores = std::vector<std::vector<double>>;

TEST(TryPlansTest, OnlyWhatIsBeyondTheNoiseOfOnePlanCorrectsTheChoice) {
  // All runs of plan 1 are shorter, by more than two runs of any plan differ.
  const Judgement clear = Judge(Scores{{10, 10.2, 10, 10.1}, {8, 8.1, 8, 8}, {9, 9.3}});
  EXPECT_EQ(clear.best, 1);
  EXPECT_TRUE(clear.is_certain);
  // They do not touch, but runs of plan 2 differ by more than the gain.
  const Judgement noisy = Judge(Scores{{10, 10.2, 10, 10}, {9.5, 9.6, 9.5, 9.6}, {10, 13}});
  EXPECT_EQ(noisy.best, 1);
  EXPECT_FALSE(noisy.is_certain);
  EXPECT_NEAR(noisy.noise, 0.3, 1e-9);
  // They overlap.
  EXPECT_FALSE(Judge(Scores{{10, 12, 10, 12}, {8, 10.5, 8, 10.5}}).is_certain);
  // One turn there and back may have been disturbed as a whole.
  EXPECT_FALSE(Judge(Scores{{10, 10}, {5, 5}}).is_certain);
}

TEST(TryPlansTest, ThePlanThatIsTheBestIsConfirmed) {
  const Judgement same = Judge(Scores{{10, 10.2}, {11, 11.5}});
  EXPECT_EQ(same.best, 0);
  EXPECT_TRUE(same.is_certain);
  EXPECT_TRUE(Judge(Scores{{10, 10.1}}).is_certain);
}

TEST(TryPlansTest, PlansThatDidNotRunDecideNothing) {
  EXPECT_EQ(Judge(Scores{{}, {}}).best, -1);
  EXPECT_FALSE(Judge(Scores{{}, {}}).is_certain);
  const Judgement without_first = Judge(Scores{{}, {5, 5}});
  EXPECT_EQ(without_first.best, 1);
  EXPECT_FALSE(without_first.is_certain);
}

TEST(TryPlansTest, QuestionsTravelWhole) {
  TrialQuestion question{.context = 40, .step_tokens = 64, .expand_from_tokens = 9, .seconds = 2.5};
  question.plans = {{.layout = {.attention_dp = 2, .expert_ep = 2},
                     .pipeline = {.chunks = 4},
                     .weights = "int8",
                     .num_threads = 1}};
  question.sequences = {{12, 3}, {40, 5}};
  question.router = {.skew = 0.5, .num_experts = 3};
  question.memory_budgets = {1 << 20, 2 << 20};
  const TrialQuestion read = TrialQuestionFromJson(ToJson(question));
  EXPECT_EQ(read.plans, question.plans);
  EXPECT_EQ(read.sequences, question.sequences);
  EXPECT_EQ(read.router.skew, question.router.skew);
  EXPECT_EQ(read.memory_budgets, question.memory_budgets);
  EXPECT_EQ(ToJson(read), ToJson(question));
}

constexpr const char* kSmallModel = CONVENE_SOURCE_DIR "/tests/golden/models/olmoe_plain";

// Plans in bf16 on one rank.
TrialQuestion QuestionOfOneRank(const std::vector<plan::Plan>& plans) {
  TrialQuestion question{.plans = plans, .sequences = {{8, 2}}, .context = 8, .seconds = 0.01};
  for (plan::Plan& plan : question.plans) {
    plan.weights = "bf16";
    plan.num_threads = 1;
  }
  return question;
}

Trials Tried(const TrialQuestion& question) {
  const Result<Trials> trials = TryPlans(*comm::MakeSoloGroup(), kSmallModel, question);
  CHECK(trials.ok(), "{}", trials.error().message);
  return *trials;
}

// They would run with everything in memory, and be measured as what they are not.
TEST(TryPlansTest, WhatLiesOnADiskIsNotTriedInMemory) {
  plan::Plan paged;
  paged.experts_in_memory = 2;
  plan::Plan spilled = paged;
  spilled.spilled_kv = plan::SpilledKv{};
  const Trials trials = Tried(QuestionOfOneRank({{}, paged, spilled}));
  EXPECT_EQ(trials.plans[0].why_not, "");
  EXPECT_GE(trials.plans[0].runs.size(), 2u);
  EXPECT_THAT(trials.plans[1].why_not, HasSubstr("experts on a disk are not tried"));
  EXPECT_THAT(trials.plans[2].why_not, HasSubstr("keys and values on a disk are not tried"));
  for (const size_t plan : {1, 2}) EXPECT_TRUE(trials.plans[plan].runs.empty());
}

TEST(TryPlansTest, TrialsKeepWithinTheBudget) {
  TrialQuestion question = QuestionOfOneRank({{}});
  question.memory_budgets = {1};  // the program itself has more
  const Result<Trials> trials = TryPlans(*comm::MakeSoloGroup(), kSmallModel, question);
  if (trials) {
    EXPECT_THAT(trials->plans[0].why_not, HasSubstr("--memory-budget"));
  } else {
    EXPECT_THAT(trials.error().message, HasSubstr("--memory-budget"));
  }
  question.memory_budgets = {uint64_t{1} << 40};
  EXPECT_EQ(Tried(question).plans[0].why_not, "");
}

TEST(TryPlansTest, TokensGoWhereTheWorkloadSendsThem) {
  TrialQuestion question = QuestionOfOneRank({{}});
  question.sequences = {{64, 2}};
  const auto visited_of = [](const Trials& trials) {
    double most = 0;
    for (const auto& [size, value] : trials.plans[0].runs[0].steps[0].sizes) {
      if (size.kind == schedule::SizeKind::kExperts) most = std::max(most, value);
    }
    return most;
  };
  const double all = visited_of(Tried(question));
  question.router = {.skew = 1, .num_experts = 2};
  const double few = visited_of(Tried(question));
  EXPECT_EQ(few, 2);
  EXPECT_GT(all, few);
}

}  // namespace
}  // namespace convene::evaluate
