#include "evaluate/measure_unevenness.h"

#include <gtest/gtest.h>

#include <mutex>
#include <vector>

#include "comm/solo/solo_group.h"
#include "comm/threads/thread_group.h"
#include "evaluate/slow_group_test.h"

namespace convene::evaluate {
namespace {

// By rank; of more ranks than send and receive, too.
std::vector<double> OnThreads(int num_ranks, double bytes_per_second) {
  std::vector<double> found(static_cast<size_t>(num_ranks), -1);
  std::mutex mutex;
  comm::RunOnThreads(num_ranks, [&](comm::Group& group) {
    SlowGroup slow(group, bytes_per_second);
    const double unevenness = MeasureUnevenness(slow);
    const std::lock_guard lock(mutex);
    found[static_cast<size_t>(group.rank())] = unevenness;
  });
  return found;
}

TEST(MeasureUnevenness, IsTheSameAShareOnAllRanks) {
  for (const int num_ranks : {2, 3, 6}) {
    const std::vector<double> found = OnThreads(num_ranks, 1e12);
    for (const double each : found) EXPECT_EQ(each, found.front()) << num_ranks;
    EXPECT_GE(found.front(), 0);
    EXPECT_LE(found.front(), 1);
  }
  EXPECT_EQ(MeasureUnevenness(*comm::MakeSoloGroup()), 0);
}

// Where each rank sends at a rate of its own, one that sends all takes as much longer as it has
// more.
TEST(MeasureUnevenness, IsMostOfOneWhereEachRankHasARateOfItsOwn) {
  for (const int num_ranks : {2, 3}) {
    EXPECT_GT(OnThreads(num_ranks, 2e7).front(), 0.6) << num_ranks;
  }
}

}  // namespace
}  // namespace convene::evaluate
