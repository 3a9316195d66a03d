#include "cost/kriging.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

namespace convene::cost {
namespace {

using ::testing::HasSubstr;

TEST(Kriging, ASmoothFunctionIsMetBetweenItsPoints) {
  std::vector<int32_t> points;
  std::vector<double> values;
  const auto function = [](double x) { return std::sin(x / 2000); };
  for (int x = 0; x <= 10000; x += 500) {
    points.push_back(x);
    values.push_back(function(x));
  }
  const Kriging kriging = FitKriging(points, 1, values);
  for (int x = 250; x < 10000; x += 500) {
    // A tenth of the step that taking the nearest point would leave.
    EXPECT_NEAR(kriging.at(std::vector<int32_t>{x}), function(x), 0.0125) << x;
  }
}

TEST(Kriging, ACoordinateThatDoesNotMatterGetsALongScale) {
  std::vector<int32_t> points;
  std::vector<double> values;
  for (int x = 0; x < 12; ++x) {
    for (int y = 0; y < 12; ++y) {
      points.push_back(1000 * x);
      points.push_back(1000 * y);
      values.push_back(x % 4 < 2 ? 1 : -1);
    }
  }
  const Kriging kriging = FitKriging(points, 2, values);
  EXPECT_GE(kriging.scales[1], 4 * kriging.scales[0]);
}

TEST(Kriging, PointsThatAreTheSameAreAveraged) {
  const Kriging kriging = FitKriging(std::vector<int32_t>{0, 0, 5000, 5000}, 1,
                                     std::vector<double>{1.0, 1.2, -1.0, -1.2});
  // The noise draws it to zero a little.
  EXPECT_NEAR(kriging.at(std::vector<int32_t>{0}), 1.1, 0.15);
  EXPECT_NEAR(kriging.at(std::vector<int32_t>{5000}), -1.1, 0.15);
}

TEST(Kriging, DamagedOnesAreRefused) {
  const Kriging whole =
      FitKriging(std::vector<int32_t>{0, 1000, 2000}, 1, std::vector<double>{1.0, 2.0, 3.0});
  EXPECT_TRUE(CheckKriging(whole, 1));
  EXPECT_FALSE(CheckKriging(whole, 2));
  Kriging damaged = whole;
  damaged.points.pop_back();
  EXPECT_THAT(CheckKriging(damaged, 1).error().message, HasSubstr("belong together"));
  damaged = whole;
  damaged.scales[0] = 0;
  EXPECT_THAT(CheckKriging(damaged, 1).error().message, HasSubstr("scale"));
  damaged = whole;
  damaged.weights[1] = std::numeric_limits<double>::quiet_NaN();
  EXPECT_THAT(CheckKriging(damaged, 1).error().message, HasSubstr("weight"));
}

}  // namespace
}  // namespace convene::cost
