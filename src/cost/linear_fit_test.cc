#include "cost/linear_fit.h"

#include <gtest/gtest.h>

#include <random>
#include <vector>

namespace convene::cost {
namespace {

TEST(LinearFit, FindsTheLineOfExactPoints) {
  const LinearFit fit = FitLinear(std::vector<Point>{{1, 5}, {2, 7}, {4, 11}});
  EXPECT_NEAR(fit.alpha, 3, 1e-12);
  EXPECT_NEAR(fit.beta, 2, 1e-12);
  EXPECT_NEAR(fit.r2, 1, 1e-12);
  EXPECT_NEAR(fit.residual_sd, 0, 1e-9);
  EXPECT_EQ(fit.x_min, 1);
  EXPECT_EQ(fit.x_max, 4);
}

TEST(LinearFit, AgreesWithAComputedExample) {
  // Anscombe's first set: y = 3.0001 + 0.5001 x, R^2 = 0.6665, residual 1.2366.
  const std::vector<Point> points = {{10, 8.04},  {8, 6.95},  {13, 7.58}, {9, 8.81},
                                     {11, 8.33},  {14, 9.96}, {6, 7.24},  {4, 4.26},
                                     {12, 10.84}, {7, 4.82},  {5, 5.68}};
  const LinearFit fit = FitLinear(points);
  EXPECT_NEAR(fit.alpha, 3.0001, 1e-4);
  EXPECT_NEAR(fit.beta, 0.5001, 1e-4);
  EXPECT_NEAR(fit.r2, 0.6665, 1e-4);
  EXPECT_NEAR(fit.residual_sd, 1.2366, 1e-4);
  // 1.8331 * 1.2366 * sqrt(1 + 1/11) at the mean of x.
  EXPECT_NEAR(fit.interval(9).high - fit.at(9), 2.3676, 1e-2);
}

TEST(LinearFit, NoPointsGiveNothingAndOneGivesAProportion) {
  EXPECT_EQ(FitLinear({}).at(5), 0);
  EXPECT_EQ(FitLinear(std::vector<Point>{{2, 6}}).at(4), 12);
  EXPECT_EQ(FitLinear(std::vector<Point>{{0, 6}, {0, 8}}).at(4), 7);
}

TEST(LinearFit, ACostNeverShrinksWithTheWork) {
  const LinearFit falling = FitLinear(std::vector<Point>{{1, 3}, {2, 2}, {3, 1}});
  EXPECT_EQ(falling.beta, 0);
  EXPECT_DOUBLE_EQ(falling.alpha, 2);
  const LinearFit convex = FitLinear(std::vector<Point>{{1, 1}, {2, 4}, {3, 9}});
  EXPECT_EQ(convex.alpha, 0);
  EXPECT_GT(convex.beta, 0);
}

TEST(LinearFit, QuantilesAreThoseOfTheTables) {
  EXPECT_NEAR(StudentQuantile(0.9, 1), 6.3138, 1e-3);
  EXPECT_NEAR(StudentQuantile(0.9, 2), 2.9200, 1e-3);
  EXPECT_NEAR(StudentQuantile(0.9, 3), 2.3534, 1e-2);
  EXPECT_NEAR(StudentQuantile(0.9, 10), 1.8125, 1e-3);
  EXPECT_NEAR(StudentQuantile(0.95, 30), 2.0423, 1e-3);
  EXPECT_NEAR(StudentQuantile(0.9, 1'000'000), 1.6449, 1e-4);
}

TEST(LinearFit, NineOfTenNewPointsLieInTheInterval) {
  std::mt19937 random(7);
  std::normal_distribution<double> noise(0, 2);
  int num_inside = 0;
  constexpr int kRounds = 4000;
  for (int round = 0; round < kRounds; ++round) {
    std::vector<Point> points;
    for (int x = 0; x < 8; ++x) {
      const double expected = 50 + 3.0 * x;
      points.push_back({static_cast<double>(x), expected + noise(random)});
    }
    const Interval interval = FitLinear(points).interval(9);
    const double y = 50 + 27 + noise(random);
    num_inside += interval.low <= y && y <= interval.high;
  }
  // The standard deviation of the count is 19.
  EXPECT_NEAR(num_inside, 0.9 * kRounds, 95);
}

}  // namespace
}  // namespace convene::cost
