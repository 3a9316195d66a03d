#include "planner/asked_for.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <set>

#include "planner/asked_question_test.h"
#include "planner/plan_search_test.h"

namespace convene::planner {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

const strategy::Pipeline kFourChunksOfExperts = {.chunks = 4, .cut = strategy::ChunkCut::kExperts};

TEST(CheckConstraints, SaysWhatDoesNotGoTogether) {
  Asked asked(1e9, {1, 2});
  asked.question.constraints.layout = *plan::ParseLayout("attention=dp4,experts=ep4");
  EXPECT_THAT(ErrorOf(asked), AllOf(HasSubstr("for 4 ranks"), HasSubstr("there are 2")));
  asked.question.constraints.layout = *plan::ParseLayout("attention=dp2,experts=ep2");
  asked.question.constraints.decode_experts = "ep2";
  EXPECT_THAT(ErrorOf(asked), HasSubstr("leave --decode-experts out"));
  Asked apart(1e9, {4});
  apart.question.constraints.layout = *plan::ParseLayout("attention=dp1,experts=ep3,disaggregate");
  apart.question.constraints.pipeline = kFourChunksOfExperts;
  EXPECT_THAT(ErrorOf(apart), HasSubstr("--pipeline 4:tokens"));
}

TEST(CheckConstraints, TurnsAreOfRanksWithExpertsAlone) {
  Asked asked(1e9, {2});
  asked.question.constraints = {.strategy = plan::DisaggregatedStrategy::kPpPipe};
  EXPECT_THAT(ErrorOf(asked), HasSubstr("add --disaggregate"));
  asked.question.constraints = {.order = strategy::AttentionOrder::kAass};
  EXPECT_THAT(ErrorOf(asked), HasSubstr("--order is of layouts"));
  asked.question.constraints = {.decode_experts = "tp2", .disaggregates = true};
  EXPECT_THAT(ErrorOf(asked), HasSubstr("have the same ones in decode"));
  asked.question.constraints = {.pipeline = kFourChunksOfExperts, .disaggregates = true};
  EXPECT_THAT(ErrorOf(asked), HasSubstr("4:tokens"));
  asked.question.constraints = {
      .micro_batches = 2, .disaggregates = true, .strategy = plan::DisaggregatedStrategy::kNaive};
  EXPECT_THAT(ErrorOf(asked), HasSubstr("one micro-batch"));
}

// Rows that are dispatched are int8 whatever the wire, where activations are.
TEST(AddWires, FormatsThatSpareNoByteAreNotTried) {
  Asked asked(1e7, {2}, {"bf16", "int8"});
  asked.question.allowed = {.layout = true, .wire = true, .weights = true};
  const auto floats = asked.question.bytes_of;
  asked.question.bytes_of = [floats](const std::string& weights, plan::Wire wire) {
    strategy::ElementBytes bytes = floats(weights, wire);
    if (weights == "int8") bytes.dispatched = 1;
    return bytes;
  };
  std::map<std::string, std::set<plan::Wire>> tried;
  for (const Candidate& one : Search(asked).candidates) {
    tried[one.setup.weights].insert(one.plan.wire);
  }
  for (const plan::Wire wire : {plan::Wire::kBf16, plan::Wire::kFp8, plan::Wire::kFp8Both}) {
    EXPECT_TRUE(tried["bf16"].contains(wire)) << plan::Name(wire);
    EXPECT_EQ(tried["int8"].contains(wire), wire != plan::Wire::kFp8) << plan::Name(wire);
  }
  // It may be asked for all the same.
  asked.question.formats = {"int8"};
  asked.question.constraints = {.wire = plan::Wire::kFp8};
  EXPECT_EQ(ChosenOf(Search(asked)).plan.wire, plan::Wire::kFp8);
}

TEST(RejectUnasked, OneRankHasNothingOfWhatIsBetweenRanks) {
  // On such a link one rank is the best that there is.
  Asked asked(1e6, {1, 2});
  ASSERT_EQ(ChosenOf(Search(asked)).setup.num_ranks, 1);
  asked.question.constraints.wire = plan::Wire::kF32;  // which one rank does, too
  EXPECT_EQ(ChosenOf(Search(asked)).setup.num_ranks, 1);
  asked.question.constraints = {.wire = plan::Wire::kFp8};
  EXPECT_EQ(ChosenOf(Search(asked)).plan.wire, plan::Wire::kFp8);
  asked.question.constraints = {.micro_batches = 3};
  EXPECT_EQ(ChosenOf(Search(asked)).plan.pipeline.micro_batches, 3);
  asked.question.constraints = {.pipeline = kFourChunksOfExperts};
  EXPECT_EQ(ChosenOf(Search(asked)).plan.pipeline.chunks, 4);
  asked.question.num_ranks = 1;
  EXPECT_THAT(ErrorOf(asked), HasSubstr("one rank has no chunks"));
}

TEST(CheckConstraints, SayWhatALayoutCannotHave) {
  Asked asked(1e9, {2});
  asked.question.allowed.layout = true;
  Constraints& constraints = asked.question.constraints;
  constraints.layout = strategy::Layout{.stages = 2};
  constraints.wire = plan::Wire::kBf16;
  EXPECT_THAT(ErrorOf(asked), HasSubstr("use --wire f32"));
  constraints.wire.reset();
  constraints.pipeline = kFourChunksOfExperts;
  EXPECT_THAT(ErrorOf(asked),
              HasSubstr("give --pipeline 1 (chunks of the plan's pipeline), and --micro-batches"));
  constraints.layout = strategy::Layout{.attention_dp = 2, .expert_tp = 2, .divides_shared = true};
  EXPECT_THAT(ErrorOf(asked), HasSubstr("slices of shared experts"));
  constraints.pipeline.reset();
  constraints.decode_experts = "ep2";
  EXPECT_THAT(ErrorOf(asked), HasSubstr("slices of shared experts"));
}

TEST(RejectUnasked, ARankHasAsManyExpertsAsChunksOfThem) {
  Asked asked(1e9, {2});
  asked.question.constraints.pipeline = kFourChunksOfExperts;
  EXPECT_EQ(ChosenOf(Search(asked)).plan.pipeline.chunks, 4);
  asked.question.constraints.pipeline->chunks = 200;
  EXPECT_THAT(ErrorOf(asked), HasSubstr("which are no 200 chunks"));
}

TEST(PlanSearch, ADivisionThatPrefillHasTooIsNotAnotherDivision) {
  Asked asked(1e9, {2});
  asked.question.constraints.decode_experts = "ep2";
  asked.question.allowed.layout = true;
  const PlanAnswer answer = Search(asked);
  const auto same = std::ranges::find_if(answer.candidates, [](const Candidate& one) {
    return one.plan.layout == plan::DefaultLayout(2) && !one.plan.decode;
  });
  ASSERT_NE(same, answer.candidates.end());
  EXPECT_THAT(same->reason, HasSubstr("it divides the experts as ep2 in prefill, too"));
}

}  // namespace
}  // namespace convene::planner
