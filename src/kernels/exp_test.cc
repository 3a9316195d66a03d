#include "kernels/exp.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <numeric>
#include <random>
#include <vector>

namespace convene::kernels {
namespace {

std::vector<double> ExpOf(const std::vector<float>& values, float largest, double scale) {
  std::vector<double> results(values.size());
  ExpOfDifferences(values, largest, scale, results);
  return results;
}

TEST(Exp, AgreesWithTheMathematicsLibrary) {
  std::mt19937 random(1);
  std::uniform_real_distribution<float> values(-700, 700);
  // Every number of rest beyond whole vectors.
  for (size_t size = 0; size < 40; ++size) {
    std::vector<float> x(size);
    for (float& value : x) value = values(random);
    for (const double scale : {1.0, 1 / 0.7, 0.01}) {
      const std::vector<double> results = ExpOf(x, 3.5f, scale);
      for (size_t i = 0; i < size; ++i) {
        const double exponent = (static_cast<double>(x[i]) - 3.5) * scale;
        if (std::abs(exponent) > 708) continue;
        EXPECT_NEAR(results[i] / std::exp(exponent), 1, 2e-14) << exponent;
      }
    }
  }
}

TEST(Exp, HasTheEndsOfTheRange) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  const std::vector<double> results =
      ExpOf({-kInfinity, -709, 0, 709, kInfinity, std::nanf("")}, 0, 1);
  EXPECT_EQ(results[0], 0);
  EXPECT_EQ(results[1], 0);
  EXPECT_EQ(results[2], 1);
  EXPECT_TRUE(std::isinf(results[3]));
  EXPECT_TRUE(std::isinf(results[4]));
  EXPECT_TRUE(std::isnan(results[5]));
}

// The tests of this file run with each instruction set: the bits are the same.
TEST(Exp, HasTheSameBitsOnEveryMachine) {
  std::vector<float> x(1003);
  for (size_t i = 0; i < x.size(); ++i) x[i] = static_cast<float>(i) * -0.37f;
  const std::vector<double> results = ExpOf(x, 0.25f, 1.7);
  uint64_t digest = 0;
  for (const double result : results) {
    digest = (digest ^ std::bit_cast<uint64_t>(result)) * 0x9e3779b97f4a7c15u;
  }
  EXPECT_EQ(digest, 189505847376177560u);
}

TEST(Exp, RoughlyAgreesWithTheMathematicsLibrary) {
  std::mt19937 random(1);
  std::uniform_real_distribution<float> values(-60, 3.5f);
  for (size_t size = 0; size < 70; ++size) {
    std::vector<float> x(size);
    for (float& value : x) value = values(random);
    for (const double scale : {1.0, 1 / 0.7, 0.01}) {
      std::vector<double> results(size);
      RoughExpOfDifferences(x, 3.5f, scale, results);
      for (size_t i = 0; i < size; ++i) {
        const double exponent = (static_cast<double>(x[i]) - 3.5) * scale;
        if (exponent < -87) continue;
        EXPECT_NEAR(results[i] / std::exp(exponent), 1, 1.2e-5) << exponent;
      }
    }
  }
}

TEST(Exp, RoughlyHasTheEndsOfTheRange) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  const std::vector<float> values = {-kInfinity, -88, 0, std::nanf(""), -1e-30f};
  for (const double scale : {1.0, 1e300}) {
    std::vector<double> results(values.size());
    RoughExpOfDifferences(values, 0, scale, results);
    EXPECT_EQ(results[0], 0);
    EXPECT_EQ(results[1], 0);
    EXPECT_EQ(results[2], 1);
    EXPECT_TRUE(std::isnan(results[3]));
    EXPECT_EQ(results[4], scale == 1 ? 1 : 0);
  }
}

TEST(Exp, RoughlyHasTheSameBitsOnEveryMachine) {
  std::vector<float> x(1003);
  for (size_t i = 0; i < x.size(); ++i) x[i] = static_cast<float>(i) * -0.067f;
  std::vector<double> results(x.size());
  RoughExpOfDifferences(x, 0.25f, 1.2, results);
  uint64_t digest = 0;
  for (const double result : results) {
    digest = (digest ^ std::bit_cast<uint64_t>(result)) * 0x9e3779b97f4a7c15u;
  }
  EXPECT_EQ(digest, 17433978931739885568u);
}

TEST(Exp, SumsAll) {
  std::vector<double> values;
  for (int i = 0; i < 30; ++i) {
    EXPECT_EQ(Sum(values), std::accumulate(values.begin(), values.end(), 0.0));
    values.push_back(i * 3.0);
  }
}

}  // namespace
}  // namespace convene::kernels
