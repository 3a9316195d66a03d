#include "model/relative_bias.h"

#include <gtest/gtest.h>

#include <vector>

namespace convene::model {
namespace {

// First distances of the buckets, from docs/families.md (made with transformers).
TEST(RelativeBucket, IsThatOfTransformers) {
  const RelativeBiasSpec spec{.num_buckets = 32, .max_distance = 128};
  const std::vector<int> encoder = {0, 1, 2, 3, 4, 5, 6, 7, 8, 12, 16, 23, 32, 46, 64, 91};
  const std::vector<int> decoder = {0,  1,  2,  3,  4,  5,  6,  7,  8,  9,  10,
                                    11, 12, 13, 14, 15, 16, 19, 21, 24, 27, 31,
                                    35, 40, 46, 52, 59, 67, 77, 87, 99, 113};
  const auto expected = [](const std::vector<int>& first, int steps) {
    int bucket = 0;
    while (bucket + 1 < std::ssize(first) && first[bucket + 1] <= steps) ++bucket;
    return bucket;
  };
  for (int steps = 0; steps <= 300; ++steps) {
    EXPECT_EQ(RelativeBucket(spec, -steps, false), expected(decoder, steps)) << steps;
    EXPECT_EQ(RelativeBucket(spec, -steps, true), expected(encoder, steps)) << steps;
    if (steps == 0) continue;
    EXPECT_EQ(RelativeBucket(spec, steps, true), 16 + expected(encoder, steps)) << steps;
    EXPECT_EQ(RelativeBucket(spec, steps, false), 0) << steps;
  }
}

TEST(BiasByDistance, RepeatsItsEnds) {
  const RelativeBiasSpec spec{.num_buckets = 4, .max_distance = 3};
  const std::vector<float> table = {0, 10, 1, 11, 2, 12, 3, 13};  // (buckets, heads)
  const std::vector<float> bias = BiasByDistance(spec, table, 2, true, 2);
  ASSERT_EQ(bias.size(), 2u * 11u);
  for (int head = 0; head < 2; ++head) {
    for (int d = -5; d <= 5; ++d) {
      const int bucket = RelativeBucket(spec, d, true);
      EXPECT_EQ(bias[head * 11 + 5 + d], table[bucket * 2 + head]) << d;
    }
  }
}

}  // namespace
}  // namespace convene::model
