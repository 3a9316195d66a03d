#include "planner/where_plan_wins.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "planner/asked_question_test.h"
#include "planner/pipeline_passes.h"

namespace convene::planner {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

Parameter Powers(double present) {
  Parameter parameter{.is_whole = true};
  const Asked asked(1e9, {2});
  AddPowers(asked.question, 1, 64, present, parameter);
  return parameter;
}

TEST(Parameters, AnswersAndRatesAreMovedToo) {
  Asked asked(1e9, {2});
  const auto of = [&](const std::string& word) {
    for (const Parameter& parameter : ParametersOf(asked.question)) {
      if (parameter.range.find(word) != std::string::npos) return parameter;
    }
    ADD_FAILURE() << word;
    return Parameter();
  };
  const Parameter answers = of("answers of 1 to ");
  EXPECT_EQ(answers.values[answers.present], 64);
  EXPECT_EQ(answers.at(256).workload.requests.front().gen_tokens, 256);
  EXPECT_EQ(answers.words(Span{Outcome::kWins, 128, 1024, true}, true),
            "with answers of 128 and more tokens");
  asked.workload.arrival_rate = 2;
  const Parameter rates = of("requests in a second");
  EXPECT_EQ(rates.values[rates.present], 2);
  EXPECT_EQ(rates.at(8).workload.arrival_rate, 8);
  EXPECT_EQ(rates.words(Span{Outcome::kWins, 0.5, 0.125, true}, false),
            "where 0.5 and fewer requests arrive in a second");
}

// As the pass `whole_decode` makes it for what runs together in the question.
Candidate WithWholeDecode(PlanSearch& search) {
  Candidate candidate{
      .setup = {2, 1, "bf16"},
      .plan = {.layout = {.attention_dp = 2, .expert_ep = 2}, .pipeline = {.chunks = 4}}};
  EXPECT_TRUE(search.CheckMemory(candidate));
  search.Price(candidate);
  candidate.plan.cut_from_tokens = WholeDecodeFrom(candidate.figures->batch);
  search.Price(candidate);
  return candidate;
}

// What a plan says of few sequences it would not say of many: then parts begin with more tokens,
// and where few tokens are in one piece anyway nothing says that more are not.
TEST(PriceAt, StepsOfDecodeAreInOnePieceWhereThatIsFaster) {
  Asked asked(1e9, {2});
  asked.workload = {.requests = {{64, 64}}, .batch = 8};
  PlanSearch search(asked.question);
  const Candidate whole = WithWholeDecode(search);
  Candidate cut = whole;
  cut.plan.cut_from_tokens = 0;
  search.Price(cut);
  const Parameter batches = Batches(asked.question);
  int num_faster = 0;
  for (const double batch : batches.values) {
    const Point point = batches.at(batch);
    const auto score = [&](int cut_from_tokens) {
      plan::Plan there = whole.plan;
      there.cut_from_tokens = cut_from_tokens;
      return search.FiguresOf(whole.setup, there, point.workload)->score;
    };
    const double in_one_piece = score(WholeDecodeFrom(static_cast<int>(batch)));
    for (const Candidate& plan : {whole, cut}) {
      const PlanThere there = PriceAt(search, plan, point);
      ASSERT_TRUE(there.figures) << batch;
      // What the search has said of the question itself stays.
      const double expected = batch == asked.workload.batch ? score(plan.plan.cut_from_tokens)
                                                            : std::min(in_one_piece, score(0));
      EXPECT_EQ(there.figures->score, expected) << batch;
    }
    if (in_one_piece < score(0)) ++num_faster;
  }
  EXPECT_GT(num_faster, 0);
}

TEST(PriceAt, StepsOfDecodeAreInOnePieceWhereThatIsFasterAtAnyRate) {
  Asked asked(1e9, {2});
  asked.workload = {.requests = {{512, 32}}, .arrival_rate = 1};
  PlanSearch search(asked.question);
  const Candidate plan = WithWholeDecode(search);
  const Parameter rates = ParametersOf(asked.question).front();
  int most = 0;
  for (const double rate : rates.values) {
    const Point point = rates.at(rate);
    const PlanThere there = PriceAt(search, plan, point);
    if (!there.figures) continue;
    most = std::max(most, there.figures->batch);
    // Steps of prompts have 512 tokens, and fewer sequences run together.
    const auto score = [&](int cut_from_tokens) {
      plan::Plan other = plan.plan;
      other.cut_from_tokens = cut_from_tokens;
      return search.FiguresOf(plan.setup, other, point.workload)->score;
    };
    EXPECT_EQ(there.figures->score, std::min(score(512), score(0))) << rate;
  }
  EXPECT_GE(most, plan.plan.cut_from_tokens);  // it was made for fewer
  EXPECT_LT(most, 512);
}

// More run together where more arrive, where each takes longer, and on a machine that is slower.
TEST(PriceAt, WhatRunsTogetherHasTheMemory) {
  Asked asked(1e9, {2});
  asked.workload = {.requests = {{64, 64}}, .arrival_rate = 1};
  PlanSearch search(asked.question);
  Candidate plan{.setup = {2, 1, "bf16"}, .plan = {.layout = {.attention_dp = 2, .expert_ep = 2}}};
  ASSERT_TRUE(search.CheckMemory(plan));
  search.Price(plan);
  ASSERT_TRUE(plan.figures) << plan.reason;
  const int batch = plan.figures->batch;
  plan.memory_limit = plan.memory.total();  // for no more sequences than that
  int without = 0;
  for (const Parameter& parameter : ParametersOf(asked.question)) {
    for (const double value : parameter.values) {
      const Point point = parameter.at(value);
      const auto figures =
          search.FiguresOf(plan.setup, plan.plan, point.workload, point.conditions);
      if (!figures) continue;
      const double longer =
          (point.workload.mean_prompt_tokens() + point.workload.mean_gen_tokens()) / 128;
      const PlanThere there = PriceAt(search, plan, point);
      EXPECT_EQ(there.fits, figures->batch * longer <= batch) << parameter.range << ": " << value;
      EXPECT_EQ(there.figures.has_value(), there.fits);
      if (!there.fits) ++without;
    }
  }
  EXPECT_GT(without, 0);
}

TEST(SpansOf, EndWhereTheOtherPlanLosesAgain) {
  const auto outcome = [](double batch) {
    return batch >= 4 && batch <= 11 ? Outcome::kWins : Outcome::kLoses;
  };
  EXPECT_THAT(SpansOf(Powers(3), 1, outcome), ElementsAre(Span{Outcome::kWins, 4, 11}));
  EXPECT_THAT(SpansOf(Powers(3), -1, outcome), IsEmpty());
  EXPECT_THAT(SpansOf(Powers(32), -1, outcome), ElementsAre(Span{Outcome::kWins, 11, 4}));
}

TEST(SpansOf, AreOpenWhereItWinsToTheEnd) {
  const auto high = [](double batch) { return batch > 20 ? Outcome::kWins : Outcome::kLoses; };
  EXPECT_THAT(SpansOf(Powers(3), 1, high), ElementsAre(Span{Outcome::kWins, 21, 64, true}));
  const auto low = [](double batch) { return batch < 3 ? Outcome::kWins : Outcome::kLoses; };
  EXPECT_THAT(SpansOf(Powers(8), -1, low), ElementsAre(Span{Outcome::kWins, 2, 1, true}));
}

TEST(SpansOf, SayWhereTheChosenPlanDoesNotFitAndEndWhereNoneDoes) {
  const auto outcome = [](double batch) {
    return batch >= 50   ? Outcome::kNeither
           : batch >= 20 ? Outcome::kFitsAlone
           : batch >= 6  ? Outcome::kWins
                         : Outcome::kLoses;
  };
  EXPECT_THAT(SpansOf(Powers(3), 1, outcome),
              ElementsAre(Span{Outcome::kWins, 6, 19}, Span{Outcome::kFitsAlone, 20, 49}));
  EXPECT_THAT(SpansOf(Powers(3), 1, outcome, 1), ElementsAre(Span{Outcome::kWins, 6, 19}));
}

TEST(SpansOf, TellGapsBesideTheValuesThatTheyWereFoundBy) {
  const auto odd_lose = [](double batch) {
    return batch >= 12 && batch != 17 ? Outcome::kWins : Outcome::kLoses;
  };
  const std::vector<Span> spans = SpansOf(Powers(8), 1, odd_lose);
  EXPECT_THAT(spans, ElementsAre(Span{Outcome::kWins, 12, 64, true, true}));
}

TEST(SpansOf, GoOnBehindValuesAtWhichItLoses) {
  const auto outcome = [](double batch) {
    return batch == 4 || batch >= 30 ? Outcome::kWins : Outcome::kLoses;
  };
  EXPECT_THAT(SpansOf(Powers(3), 1, outcome),
              ElementsAre(Span{Outcome::kWins, 4, 4}, Span{Outcome::kWins, 30, 64, true}));
}

}  // namespace
}  // namespace convene::planner
