#include "comm/share_cpus.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <vector>

#include "comm/threads/thread_group.h"
#include "hardware/affinity.h"

namespace convene::comm {
namespace {

TEST(ShareCpusOfHost, GivesEachRankThoseThatAllAreBoundTo) {
  const std::vector<int> all = *hardware::CurrentAffinity();
  if (all.size() < 2) GTEST_SKIP() << "one CPU alone";
  RunOnThreads(3, [&](Group& group) {
    EXPECT_TRUE(hardware::SetAffinity({all[group.rank() == 1 ? 1 : 0]}));
    ShareCpusOfHost(group);
    EXPECT_THAT(*hardware::CurrentAffinity(), testing::ElementsAre(all[0], all[1]));
  });
}

TEST(ShareCpusOfHost, LeavesRanksThatAreNotBoundAsTheyAre) {
  const std::vector<int> all = *hardware::CurrentAffinity();
  RunOnThreads(2, [&](Group& group) {
    ShareCpusOfHost(group);
    EXPECT_EQ(*hardware::CurrentAffinity(), all);
  });
}

}  // namespace
}  // namespace convene::comm
