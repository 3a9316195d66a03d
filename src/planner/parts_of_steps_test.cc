// Chunks and micro-batches in the search: of which steps, within which limits and memory.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "planner/asked_question_test.h"
#include "planner/plan_search_test.h"

namespace convene::planner {
namespace {

using ::testing::HasSubstr;

// Parts gain where exchanges take long, and cost where weights do: each phase has what is better.
TEST(PartsOfSteps, DecodeIsInOnePieceWherePartsGainInPrefillAlone) {
  Asked asked(3e7, {2});
  asked.question.num_ranks = 2;
  asked.question.constraints.num_ranks = 2;
  asked.workload = {.requests = {{500, 60}}, .batch = 8};
  const PlanAnswer answer = Search(asked);
  const Candidate& chosen = ChosenOf(answer);
  ASSERT_GT(chosen.plan.cut_from_tokens, 8) << Describe(chosen);
  EXPECT_THAT(Describe(chosen), HasSubstr("in steps of 16 tokens and more"));
  const double score = chosen.figures->score;
  asked.question.passes_off = {"whole_decode"};
  EXPECT_GT(ChosenOf(Search(asked)).figures->score, score);
}

// No pass looks for pipelines of plans that do not keep the limits without one.
TEST(PartsOfSteps, LimitsThatAPipelineAloneKeepsAreKept) {
  Asked asked(3e7, {2});
  asked.question.num_ranks = 2;
  asked.question.constraints.num_ranks = 2;
  asked.workload = {.requests = {{2000, 4}}, .batch = 4, .objective = Objective::kTtft};
  asked.workload.batch = 1;
  const double best = ChosenOf(Search(asked)).figures->ttft;
  asked.question.passes_off = {"pipelines", "cuts", "micro_batches", "turns", "disaggregated"};
  const double plain = ChosenOf(Search(asked)).figures->ttft;
  ASSERT_LT(best, 0.97 * plain);
  asked.question.passes_off = {};
  asked.workload.objective = Objective::kGoodput;
  asked.workload.limits.ttft = (best + plain) / 2;
  const PlanAnswer answer = Search(asked);
  const Candidate& kept = ChosenOf(answer);
  EXPECT_LE(kept.figures->ttft, asked.workload.limits.ttft) << Describe(kept);
  asked.question.passes_off = {"limits"};
  EXPECT_FALSE(SearchPlan(asked.question).ok());
}

// A plan that was made from another has memory of its own.
TEST(PartsOfSteps, MemoryOfPartsOfStepsIsTheirOwn) {
  Asked asked(3e7, {2});
  asked.workload = {.requests = {{2000, 4}}, .batch = 4};
  asked.question.memory_of = [](const RankSetup&, const plan::Plan& plan,
                                int) -> Result<RankMemory> {
    return RankMemory{.working_bytes =
                          uint64_t{1000} + static_cast<uint64_t>(plan.pipeline.micro_batches)};
  };
  int num_cut = 0;
  for (const Candidate& one : Search(asked).candidates) {
    if (!one.is_ranked()) continue;
    const auto parts = static_cast<uint64_t>(one.plan.pipeline.micro_batches);
    EXPECT_EQ(one.memory.total(), 1000 + parts) << Describe(one);
    num_cut += parts > 1 ? 1 : 0;
  }
  EXPECT_GT(num_cut, 0);
}

}  // namespace
}  // namespace convene::planner
