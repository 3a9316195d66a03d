#include "evaluate/bench_point.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace convene::evaluate {
namespace {

using ::testing::HasSubstr;

BenchPoint Point(double flops_per_s, double expert_flops_per_s, double bytes_per_s) {
  return {.name = "pp8",
          .repetitions = {{.flops_per_s = flops_per_s,
                           .bytes_per_s = bytes_per_s,
                           .expert_flops_per_s = expert_flops_per_s,
                           .peaks = {.flops_per_s = 100, .bytes_per_s = 10}}}};
}

TEST(RemarksOnShares, OnlySharesAboveAllNeedOne) {
  EXPECT_TRUE(RemarksOnShares({}, 1, 2).empty());
  EXPECT_TRUE(RemarksOnShares({Point(99, 100, 10)}, 1, 2).empty());
}

TEST(RemarksOnShares, WeightsInTheCacheAreReadFasterThanMemory) {
  const auto remarks = RemarksOnShares({Point(1, 1, 1), Point(1, 1, 25.3)}, 1 << 20, 32 << 20);
  ASSERT_EQ(remarks.size(), 1u);
  EXPECT_THAT(remarks[0],
              HasSubstr("the weights (1.00 MiB) fit in the last-level cache (32.0 MiB)"));
}

TEST(RemarksOnShares, OtherwiseTheMachineHasChanged) {
  for (const BenchPoint& point : {Point(1, 1, 11), Point(101, 1, 1), Point(1, 101, 1)}) {
    const auto remarks = RemarksOnShares({point}, 1 << 30, 1 << 20);
    ASSERT_EQ(remarks.size(), 1u);
    EXPECT_THAT(remarks[0], HasSubstr("when its peaks were measured"));
  }
  EXPECT_EQ(RemarksOnShares({Point(101, 1, 11)}, 1, 2).size(), 2u);
}

}  // namespace
}  // namespace convene::evaluate
