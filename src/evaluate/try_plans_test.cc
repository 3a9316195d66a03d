#include "evaluate/try_plans.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

namespace convene::evaluate {
namespace {

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
  const TrialQuestion read = TrialQuestionFromJson(ToJson(question));
  EXPECT_EQ(read.plans, question.plans);
  EXPECT_EQ(read.sequences, question.sequences);
  EXPECT_EQ(ToJson(read), ToJson(question));
}

}  // namespace
}  // namespace convene::evaluate
