#include "cost/relative_line.h"

#include <gtest/gtest.h>

#include <vector>

namespace convene::cost {
namespace {

TEST(RelativeLine, PointsOnALineGiveThatLine) {
  const std::vector<double> ideal = {1e-6, 1e-5, 1e-3};
  std::vector<double> seconds;
  for (const double x : ideal) seconds.push_back(2e-5 + 1.5 * x);
  const RelativeLine line = FitRelativeLine(ideal, seconds);
  EXPECT_NEAR(line.alpha, 2e-5, 1e-13);
  EXPECT_NEAR(line.beta, 1.5, 1e-8);
  EXPECT_NEAR(line.r2, 1, 1e-12);
}

TEST(RelativeLine, ShortWorkCountsAsMuchAsLongWork) {
  // Two short points ask for alpha = 1, and the long one for beta = 1: both are kept to a percent,
  // though the long one is a million times longer.
  const RelativeLine line =
      FitRelativeLine(std::vector<double>{1e-9, 2e-9, 1e6}, std::vector<double>{1, 1, 1e6});
  EXPECT_NEAR(line.at(1e-9), 1, 0.01);
  EXPECT_NEAR(line.at(1e6) / 1e6, 1, 0.01);
}

TEST(RelativeLine, NeitherParameterIsNegative) {
  // Faster than in proportion: alpha would be negative.
  RelativeLine line = FitRelativeLine(std::vector<double>{1, 2, 3}, std::vector<double>{1, 4, 9});
  EXPECT_EQ(line.alpha, 0);
  EXPECT_GT(line.beta, 0);
  // Shrinking with the work: beta would be negative.
  line = FitRelativeLine(std::vector<double>{1, 2, 3}, std::vector<double>{3, 2, 1});
  EXPECT_GT(line.alpha, 0);
  EXPECT_EQ(line.beta, 0);
}

TEST(RelativeLine, OfOneIdealTimeIsProportional) {
  const RelativeLine line = FitRelativeLine(std::vector<double>{2, 2}, std::vector<double>{4, 4});
  EXPECT_EQ(line.alpha, 0);
  EXPECT_DOUBLE_EQ(line.beta, 2);
  EXPECT_EQ(line.r2, 1);
}

}  // namespace
}  // namespace convene::cost
