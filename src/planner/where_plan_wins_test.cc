#include "planner/where_plan_wins.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "planner/asked_question_test.h"

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
