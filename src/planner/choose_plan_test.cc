#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "planner/asked_question_test.h"
#include "planner/plan_search_test.h"

namespace convene::planner {
namespace {

using ::testing::HasSubstr;

TEST(ChoosePlan, ThePresentPlanStaysWhereAGainIsNotCertain) {
  Asked asked(1e9, {4});
  for (cost::StepCosts& costs : asked.profile.steps) {
    for (auto& held_out : costs.held_out) held_out = cost::HeldOut{.low = -1, .high = 1};
    costs.exchange_held_out = cost::HeldOut{.low = -1, .high = 1};
  }
  asked.question.allowed.layout = true;
  const PlanAnswer answer = Search(asked);
  // Any plan that is slower by less than a tenth, with other exchanges, may be as good.
  int stayed = 0;
  for (const int i : {0, 1, 2, 4, 8, 16}) {
    const Candidate& candidate = answer.candidates[i];
    ASSERT_TRUE(candidate.is_ranked());
    asked.question.present = candidate.plan;
    const PlanAnswer again = Search(asked);
    const bool stays = ChosenOf(again).plan == candidate.plan;
    stayed += stays ? 1 : 0;
    if (stays) {
      EXPECT_LT(candidate.figures->score, 1.1 * again.candidates[again.fastest].figures->score);
    }
    if (i == answer.fastest) {
      EXPECT_TRUE(stays);
    }
  }
  EXPECT_GT(stayed, 1);
}

TEST(ChoosePlan, NoPlanIsChosenForBeingSimpleBesideASimplerOneThatIsFaster) {
  Asked asked(1e9, {4});
  // Of steps that overlap nothing is known, and of others everything.
  asked.profile.steps[0].overlapped_held_out = cost::HeldOut{.low = -0.9, .high = 9};
  PlanSearch search(asked.question);
  ASSERT_TRUE(SearchPlan(search));
  const auto plan_of = [](const strategy::Layout& layout, double score) {
    Candidate one{.setup = {4, 1, "bf16"}, .plan = {.layout = layout}};
    one.figures = PlanFigures{.score = score};
    one.figures->path[static_cast<size_t>(schedule::TaskKind::kExperts)] = score;
    return one;
  };
  const Candidate sliced = plan_of({.attention_dp = 4, .expert_tp = 4}, 1);
  const Candidate plain = plan_of(plan::DefaultLayout(4), 1.02);
  Candidate parts = plan_of(plan::DefaultLayout(4), 1.05);
  parts.plan.pipeline.micro_batches = 2;
  parts.figures->overlapped_seconds = parts.figures->score;
  // Alone beside the fastest one it might be as fast, and plain steps are no simpler than a layout.
  EXPECT_EQ(&ChoiceOf(search, {&sliced, &parts}), &sliced);
  EXPECT_EQ(&ChoiceOf(search, {&sliced, &plain, &parts}), &sliced);
  Candidate sliced_parts = sliced;
  sliced_parts.plan.pipeline.micro_batches = 2;
  sliced_parts.figures->overlapped_seconds = 1;
  EXPECT_EQ(&ChoiceOf(search, {&sliced_parts, &plain, &parts}), &plain);
  // Two divisions are no simpler than one, whichever.
  Candidate both = plan_of(plan::DefaultLayout(4), 1.001);
  both.plan.decode = sliced.plan.layout;
  both.plan.phase_change.keeps_both = true;
  both.figures->overlapped_seconds = 1;
  EXPECT_EQ(&ChoiceOf(search, {&sliced, &both}), &sliced);
}

void ForgetErrors(cost::MachineProfile& profile) {
  for (cost::StepCosts& costs : profile.steps) {
    costs.held_out = {};
    costs.exchange_held_out.reset();
    costs.overlapped_held_out.reset();
  }
}

// With 2 micro-batches, and without, which takes so many times as long.
const Candidate& ChoiceWithParts(const PlanSearch& search, double gain) {
  static std::vector<Candidate> both;
  both.clear();
  for (const int micro_batches : {2, 1}) {
    Candidate one{.setup = {2, 1, "bf16"}, .plan = {.layout = plan::DefaultLayout(2)}};
    one.plan.pipeline.micro_batches = micro_batches;
    const double score = micro_batches == 1 ? gain : 1;
    one.figures = PlanFigures{.score = score};
    one.figures->path[static_cast<size_t>(schedule::TaskKind::kExperts)] = score;
    if (micro_batches > 1) one.figures->overlapped_seconds = score;
    both.push_back(std::move(one));
  }
  return ChoiceOf(search, {&both[0], &both[1]});
}

TEST(ChoosePlan, PartsAreTakenForAGainThatIsMoreThanRoundingAndMoreThanErrors) {
  for (const bool are_known : {true, false}) {
    Asked asked(1e9, {2});
    if (!are_known) ForgetErrors(asked.profile);
    PlanSearch search(asked.question);
    ASSERT_TRUE(SearchPlan(search));
    const auto has_parts = [&](double gain) {
      return ChoiceWithParts(search, gain).plan.pipeline.micro_batches > 1;
    };
    for (const double gain : {1.0, 1 + 2e-16, 1 + 1e-9, 1.001}) EXPECT_FALSE(has_parts(gain));
    EXPECT_EQ(has_parts(1.05), are_known);
    EXPECT_TRUE(has_parts(1.5));
  }
}

TEST(ChoosePlan, PartsThatNoStepHasAreNotOffered) {
  for (const int prompt_tokens : {1, 3, 64}) {
    for (const int batch : {1, 2, 8}) {
      Asked asked(1e8, {2, 4});
      asked.workload = {.requests = {{prompt_tokens, 1}}, .batch = batch};
      const PlanAnswer answer = Search(asked);
      for (const Candidate& one : answer.candidates) {
        if (!one.is_ranked() || one.plan.layout.disaggregates) continue;
        const strategy::Pipeline& pipeline = one.plan.pipeline;
        const int groups = strategy::Roles(one.plan.layout).num_groups();
        const bool cuts_tokens = pipeline.cut == strategy::ChunkCut::kTokens;
        const int parts = std::max(pipeline.micro_batches, cuts_tokens ? pipeline.chunks : 1);
        if (parts == 1) continue;
        EXPECT_LE(parts * groups, prompt_tokens * batch) << Describe(one);
      }
      if (prompt_tokens * batch > 1) continue;
      EXPECT_EQ(ChosenOf(answer).plan.pipeline.micro_batches, 1) << Describe(ChosenOf(answer));
    }
  }
}

// The fastest and the one that is taken are two, and why is said.
TEST(ChoosePlan, WhatIsLeftOpenByErrorsThatNobodyKnowsIsSaid) {
  int num_told = 0;
  for (const double link : {1e8, 3e8, 1e9, 3e9}) {
    Asked asked(link, {2});
    ForgetErrors(asked.profile);
    const PlanAnswer answer = Search(asked);
    if (answer.chosen == answer.fastest) continue;
    if (answer.why_chosen.find("too little to tell") != std::string::npos) continue;
    EXPECT_THAT(answer.why_chosen, HasSubstr("its error is not known, and taken to be 10 %"));
    ++num_told;
  }
  EXPECT_GT(num_told, 0);
}

}  // namespace
}  // namespace convene::planner
