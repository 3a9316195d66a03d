#include "cost/doubtful_costs.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace convene::cost {
namespace {

using schedule::TaskKind;
using ::testing::HasSubstr;
using ::testing::Not;

HeldOut& HeldOutOfKind(TaskKind kind, StepCosts& costs) {
  return costs.held_out[static_cast<size_t>(kind)].emplace();
}

TEST(DoubtfulCosts, AreThoseWhoseMainKindsMissTasksThatWereHeldOut) {
  StepCosts costs;
  EXPECT_FALSE(MostDoubtfulKind(costs)) << "nothing was held out";
  HeldOutOfKind(TaskKind::kExperts, costs).median_error = kMostMedianError;
  // Of microseconds.
  HeldOutOfKind(TaskKind::kNormalize, costs).median_error = 2 * kMostMedianError;
  EXPECT_FALSE(MostDoubtfulKind(costs));
  HeldOutOfKind(TaskKind::kExperts, costs).median_error = 2 * kMostMedianError;
  HeldOutOfKind(TaskKind::kAttention, costs).median_error = 3 * kMostMedianError;
  HeldOutOfKind(TaskKind::kHead, costs).median_error = 0;
  const auto most = MostDoubtfulKind(costs);
  ASSERT_TRUE(most);
  EXPECT_EQ(most->kind, TaskKind::kAttention);
  EXPECT_EQ(most->median_error, 3 * kMostMedianError);
}

TEST(DoubtfulCosts, AreNamedWithTheirFormatAndTheKindThatIsWorst) {
  std::vector<StepCosts> measured(2);
  measured[0].weights = "bf16";
  measured[1].weights = "int8";
  EXPECT_EQ(WordsOfDoubt(measured), "");
  HeldOutOfKind(TaskKind::kExperts, measured[1]).median_error = 0.838;
  const std::string words = WordsOfDoubt(measured);
  EXPECT_THAT(words, HasSubstr("missed with weights in int8 by 83.8 % (experts) in the median"));
  EXPECT_THAT(words, Not(HasSubstr("bf16")));
}

TEST(DoubtfulCosts, AreThoseOfRanksThatMayNotUseAllOfTheirThreads) {
  EXPECT_EQ(WordsOfQuota(0, 2, std::nullopt), "");
  EXPECT_EQ(WordsOfQuota(0, 2, 2.0), "");
  EXPECT_THAT(WordsOfQuota(3, 1, 0.5), HasSubstr("rank 3 has 1 thread and may use 0.5 of a core"));
  EXPECT_THAT(WordsOfQuota(0, 2, 1.5), HasSubstr("2 threads"));
}

}  // namespace
}  // namespace convene::cost
