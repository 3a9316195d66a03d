#include "tensor/finite.h"

#include <gtest/gtest.h>

#include <limits>
#include <vector>

namespace convene::tensor {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr float kMost = std::numeric_limits<float>::max();

TEST(AllFinite, FindsOneAmongMany) {
  for (const size_t count : {1, 7, 16, 33, 256}) {
    std::vector<float> values(count, -kMost);
    EXPECT_TRUE(AllFinite(values));
    for (const float bad : {kInfinity, -kInfinity, kNan, -kNan}) {
      for (const size_t at : {size_t{0}, count / 2, count - 1}) {
        values[at] = bad;
        EXPECT_FALSE(AllFinite(values)) << bad << " at " << at << " of " << count;
        values[at] = kMost;
      }
    }
  }
}

TEST(AllFinite, IsTheSameOfBf16) {
  std::vector<Bf16> values(50, 0xff7f);  // the lowest
  EXPECT_TRUE(AllFinite(values));
  for (const int bad : {0x7f80, 0xff80, 0x7fc0, 0xffff, 0x7f81}) {
    values[31] = static_cast<Bf16>(bad);
    EXPECT_FALSE(AllFinite(values)) << bad;
  }
}

TEST(AllFinite, HoldsOfNothing) { EXPECT_TRUE(AllFinite(std::span<const float>())); }

}  // namespace
}  // namespace convene::tensor
