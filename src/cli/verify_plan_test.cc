#include "cli/verify_plan.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <vector>

#include "planner/asked_question_test.h"
#include "planner/plan_search_test.h"

namespace convene::cli {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

// Otherwise plans would be compared on other routing than they were priced with.
TEST(VerifyPlan, TrialsHaveTheRoutingAndTheMemoryOfTheQuestion) {
  for (const double skew : {-1.0, 0.0, 0.75}) {
    planner::Asked asked(1e9, {2});
    if (skew >= 0) asked.workload.routing = {.skew = skew, .num_experts_skew = 4};
    planner::PlanSearch search(asked.question);
    const Result<planner::PlanAnswer> answer = SearchPlan(search);
    ASSERT_TRUE(answer.ok()) << answer.error().message;
    const evaluate::TrialQuestion question =
        TrialQuestionOf({.directory = "", .model_hash = "", .memory_budgets = {16, 8}}, search,
                        *answer, PlansToTry(*answer, /*most=*/2));
    EXPECT_EQ(question.router.is_set(), skew >= 0);
    if (skew >= 0) {
      EXPECT_EQ(question.router.skew, skew);
      EXPECT_EQ(question.router.num_experts, 4);
    }
    EXPECT_THAT(question.memory_budgets, ElementsAre(16, 8));
    EXPECT_EQ(question.plans.size(), 2u);
    EXPECT_EQ(question.sequences.size(), static_cast<size_t>(asked.workload.batch));
  }
}

// Of an encoder-decoder the prompt is the encoder's part of what is behind a generated token.
TEST(VerifyPlan, TrialsOfEncoderDecodersHaveTheirInputsAndAnswers) {
  planner::Asked asked(1e9, {2});
  asked.spec = planner::InventedEncoderDecoder(4);
  asked.workload.requests = {{300, 41}};
  planner::PlanSearch search(asked.question);
  const Result<planner::PlanAnswer> answer = SearchPlan(search);
  ASSERT_TRUE(answer.ok()) << answer.error().message;
  const evaluate::TrialQuestion question =
      TrialQuestionOf({}, search, *answer, PlansToTry(*answer, /*most=*/2));
  EXPECT_EQ(question.prompt_tokens, 300);
  EXPECT_EQ(question.context, 320);
  EXPECT_EQ(question.sequences.front().prompt_tokens, 300);
}

TEST(VerifyPlan, TrialsAreRoutedAsWasRecorded) {
  planner::Asked asked(1e9, {2});
  const auto num_experts = static_cast<size_t>(asked.spec.layers.front().moe->num_experts);
  std::vector<double> counts(num_experts, 1);
  counts.back() = 3;
  asked.workload.routing.counts.assign(asked.spec.layers.size(), counts);
  planner::PlanSearch search(asked.question);
  const Result<planner::PlanAnswer> answer = SearchPlan(search);
  ASSERT_TRUE(answer.ok()) << answer.error().message;
  const evaluate::TrialQuestion question =
      TrialQuestionOf({}, search, *answer, PlansToTry(*answer, /*most=*/2));
  ASSERT_EQ(question.router.shares.size(), asked.spec.layers.size());
  const std::vector<double>& shares = question.router.shares.front();
  EXPECT_NEAR(shares.back(), 3 * shares.front(), 1e-9);
}

TEST(VerifyPlan, WhatLiesOnADiskIsTriedWithNothing) {
  planner::PlanAnswer answer;
  for (int i = 0; i < 4; ++i) {
    planner::Candidate one{.setup = {2, 1, "bf16"}, .plan = {.layout = plan::DefaultLayout(2)}};
    one.figures = planner::PlanFigures{.score = 1.0 + i};
    answer.candidates.push_back(std::move(one));
  }
  answer.candidates[1].plan.experts_in_memory = 2;
  answer.chosen = 0;
  EXPECT_THAT(PlansToTry(answer), ElementsAre(0, 2, 3));
  answer.chosen = 1;
  EXPECT_THAT(PlansToTry(answer), ElementsAre(1));
}

}  // namespace
}  // namespace convene::cli
