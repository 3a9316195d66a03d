#include "kernels/unit_shares.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <thread>
#include <vector>

namespace convene::kernels {
namespace {

TEST(UnitShares, AShareIsTakenFromItsFrontInPiecesThatShrink) {
  UnitShares shares(200, 2);
  int64_t next = 0;
  std::vector<int64_t> counts;
  while (next < 100) {
    const UnitShares::Units taken = shares.Take(0, 16);
    EXPECT_EQ(taken.begin, next);
    next = taken.end;
    counts.push_back(taken.end - taken.begin);
  }
  EXPECT_EQ(counts.front(), 16);
  EXPECT_EQ(counts.back(), 1);
  EXPECT_TRUE(std::is_sorted(counts.rbegin(), counts.rend()));
}

TEST(UnitShares, WhoHasNothingLeftTakesTheBackHalfOfWhatAnotherHas) {
  UnitShares shares(8, 2);
  while (shares.Take(0, 1).end < 4) {
  }
  const UnitShares::Units helped = shares.Take(0, 1);
  EXPECT_EQ(helped.begin, 6);
  EXPECT_EQ(helped.end, 7);
  EXPECT_EQ(shares.Take(1, 1).begin, 4);
}

TEST(UnitShares, NothingIsLeftOfNoUnits) {
  UnitShares shares(0, 3);
  for (const int share : {0, 1, 2}) {
    const UnitShares::Units taken = shares.Take(share, 4);
    EXPECT_EQ(taken.begin, taken.end);
  }
}

// As many threads as shares, or one share for all of them.
void ExpectEachUnitOnce(int64_t num_units, int num_shares, int num_threads) {
  UnitShares shares(num_units, num_shares);
  std::vector<std::atomic<int>> times(static_cast<size_t>(num_units));
  std::vector<std::thread> threads;
  for (int i = 0; i < num_threads; ++i) {
    threads.emplace_back([&, i] {
      for (;;) {
        const UnitShares::Units taken = shares.Take(num_shares == 1 ? 0 : i, 1 + i);
        if (taken.begin == taken.end) return;
        for (int64_t unit = taken.begin; unit < taken.end; ++unit) {
          ++times[static_cast<size_t>(unit)];
        }
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const std::atomic<int>& each : times) ASSERT_EQ(each.load(), 1);
}

TEST(UnitShares, ThreadsTakeEachUnitOnce) {
  for (const int64_t num_units : {1, 2, 7, 64, 10'000}) {
    for (int round = 0; round < 20; ++round) {
      ExpectEachUnitOnce(num_units, 4, 4);
      ExpectEachUnitOnce(num_units, 1, 4);
    }
  }
}

}  // namespace
}  // namespace convene::kernels
