#include "cost/linear_fit.h"

#include <gtest/gtest.h>

#include <vector>

namespace convene::cost {
namespace {

TEST(LinearFit, FindsTheLineOfExactPoints) {
  const LinearFit fit = FitLinear(std::vector<Point>{{1, 5}, {2, 7}, {4, 11}});
  EXPECT_NEAR(fit.alpha, 3, 1e-12);
  EXPECT_NEAR(fit.beta, 2, 1e-12);
  EXPECT_NEAR(fit.r2, 1, 1e-12);
  EXPECT_EQ(fit.x_max, 4);
}

TEST(LinearFit, AgreesWithAComputedExample) {
  // Anscombe's first set: y = 3.0001 + 0.5001 x, R^2 = 0.6665.
  const std::vector<Point> points = {{10, 8.04},  {8, 6.95},  {13, 7.58}, {9, 8.81},
                                     {11, 8.33},  {14, 9.96}, {6, 7.24},  {4, 4.26},
                                     {12, 10.84}, {7, 4.82},  {5, 5.68}};
  const LinearFit fit = FitLinear(points);
  EXPECT_NEAR(fit.alpha, 3.0001, 1e-4);
  EXPECT_NEAR(fit.beta, 0.5001, 1e-4);
  EXPECT_NEAR(fit.r2, 0.6665, 1e-4);
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

}  // namespace
}  // namespace convene::cost
