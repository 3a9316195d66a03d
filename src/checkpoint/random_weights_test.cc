#include "checkpoint/random_weights.h"

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

namespace convene::checkpoint {
namespace {

using tensor::Bf16;
using tensor::FloatFromBf16;

std::vector<Bf16> Normal(uint64_t key, int64_t first, float std, size_t count) {
  std::vector<Bf16> values(count);
  FillNormal(key, first, std, values);
  return values;
}

TEST(RandomWeights, HaveMeanZeroAndTheDeviationAskedFor) {
  constexpr size_t kCount = 1 << 20;
  const std::vector<Bf16> values = Normal(RandomKey(1, "w"), 0, 0.02f, kCount);
  double sum = 0;
  double squares = 0;
  double largest = 0;
  double neighbours = 0;
  for (size_t i = 0; i < kCount; ++i) {
    const double value = FloatFromBf16(values[i]) / 0.02;
    sum += value;
    squares += value * value;
    largest = std::max(largest, std::abs(value));
    if (i > 0) neighbours += value * FloatFromBf16(values[i - 1]) / 0.02;
  }
  // Five standard errors of a mean over 2^20.
  EXPECT_NEAR(sum / kCount, 0, 0.005);
  EXPECT_NEAR(squares / kCount, 1, 0.01);
  EXPECT_NEAR(neighbours / kCount, 0, 0.005);
  EXPECT_GT(largest, 3);
  EXPECT_LT(largest, 3.6);
}

TEST(RandomWeights, DependOnThePlaceNotOnTheCut) {
  const uint64_t key = RandomKey(7, "w");
  const std::vector<Bf16> whole = Normal(key, 0, 1, 3 * kRandomBlock + 5);
  const std::vector<Bf16> tail = Normal(key, kRandomBlock, 1, 2 * kRandomBlock + 5);
  EXPECT_TRUE(std::equal(tail.begin(), tail.end(), whole.begin() + kRandomBlock));
}

TEST(RandomWeights, DifferBySeedNameAndBlock) {
  const auto correlation = [](const std::vector<Bf16>& a, const std::vector<Bf16>& b) {
    double sum = 0;
    for (size_t i = 0; i < a.size(); ++i) sum += FloatFromBf16(a[i]) * FloatFromBf16(b[i]);
    return std::abs(sum / static_cast<double>(a.size()));
  };
  const auto base = Normal(RandomKey(1, "w"), 0, 1, kRandomBlock);
  EXPECT_GT(correlation(base, base), 0.9);
  EXPECT_LT(correlation(base, Normal(RandomKey(2, "w"), 0, 1, kRandomBlock)), 0.02);
  EXPECT_LT(correlation(base, Normal(RandomKey(1, "v"), 0, 1, kRandomBlock)), 0.02);
  EXPECT_LT(correlation(base, Normal(RandomKey(1, "w"), kRandomBlock, 1, kRandomBlock)), 0.02);
}

}  // namespace
}  // namespace convene::checkpoint
