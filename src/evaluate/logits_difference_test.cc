#include "evaluate/logits_difference.h"

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

namespace convene::evaluate {
namespace {

// Logits whose softmax is given.
std::vector<float> LogitsOf(const std::vector<double>& probabilities) {
  std::vector<float> logits;
  for (const double p : probabilities) logits.push_back(static_cast<float>(std::log(p)));
  return logits;
}

TEST(NegativeLogLikelihood, IsThatOfTheSoftmax) {
  EXPECT_NEAR(NegativeLogLikelihood(LogitsOf({0.5, 0.25, 0.25}), 1), std::log(4.0), 1e-6);
  // Large logits do not overflow.
  EXPECT_NEAR(NegativeLogLikelihood(std::vector<float>{1000, 1000}, 0), std::log(2.0), 1e-6);
}

TEST(LogitsDifference, OfEqualLogitsIsNothing) {
  LogitsDifference difference;
  const std::vector<float> logits = {1.5f, -3, 0.25f, 7};
  for (int next = 0; next < 4; ++next) difference.Add(logits, logits, next);
  EXPECT_EQ(difference.num_positions(), 4);
  EXPECT_EQ(difference.mean_kl(), 0);
  EXPECT_EQ(difference.top1_agreement(), 1);
  EXPECT_EQ(difference.perplexity_change(), 0);
  EXPECT_EQ(difference.standard_error(), 0);
  EXPECT_EQ(difference.mean_difference(), 0);
  EXPECT_EQ(difference.max_difference(), 0);
  EXPECT_EQ(difference.reference_nll(), difference.candidate_nll());
}

TEST(LogitsDifference, WithoutPositionsIsZero) {
  const LogitsDifference difference;
  EXPECT_EQ(difference.mean_kl(), 0);
  EXPECT_EQ(difference.top1_agreement(), 0);
  EXPECT_EQ(difference.perplexity_change(), 0);
  EXPECT_EQ(difference.standard_error(), 0);
}

TEST(LogitsDifference, FollowsTheDefinitions) {
  const std::vector<double> p = {0.5, 0.25, 0.25};
  const std::vector<double> q = {0.2, 0.4, 0.4};
  LogitsDifference difference;
  difference.Add(LogitsOf(p), LogitsOf(q), 0);  // other top, likelihood 0.5 and 0.2
  difference.Add(LogitsOf(p), LogitsOf(p), 1);  // the same
  double kl = 0;
  for (int i = 0; i < 3; ++i) kl += p[i] * std::log(p[i] / q[i]);
  EXPECT_NEAR(difference.mean_kl(), kl / 2, 1e-7);
  EXPECT_EQ(difference.top1_agreement(), 0.5);
  EXPECT_NEAR(difference.perplexity_change(), std::sqrt(2.5) - 1, 1e-6);
  EXPECT_NEAR(difference.candidate_nll(), (std::log(5.0) + std::log(4.0)) / 2, 1e-6);
  // Changes of log(2.5) and 0: their mean is log(2.5) / 2 and so is its standard error.
  EXPECT_NEAR(difference.standard_error(), std::log(2.5) / 2 * std::sqrt(2.5), 1e-6);
  EXPECT_NEAR(difference.max_difference(), std::log(2.5), 1e-6);
  EXPECT_NEAR(difference.mean_difference(), (std::log(2.5) + 2 * std::log(1.6)) / 6, 1e-6);
}

TEST(LogitsDifference, DoesNotSeeAShiftOfAllLogitsInTheDistribution) {
  LogitsDifference difference;
  difference.Add(std::vector<float>{1, 2, 3}, std::vector<float>{5, 6, 7}, 2);
  EXPECT_NEAR(difference.mean_kl(), 0, 1e-12);
  EXPECT_EQ(difference.max_difference(), 4);
}

}  // namespace
}  // namespace convene::evaluate
