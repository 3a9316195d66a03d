#include "hardware/topology.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <numeric>
#include <set>

#include "hardware/affinity.h"

namespace convene::hardware {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

// 2 memory nodes of 4 cores with 2 logical CPUs each: core c has CPUs 2c and 2c+1.
Topology Machine(int num_cpus = 16) {
  std::vector<int> cpus(static_cast<size_t>(num_cpus));
  std::iota(cpus.begin(), cpus.end(), 0);
  return *SyntheticTopology("numa:2 l3:1(size=33554432) core:4 pu:2", cpus);
}

TEST(Topology, DescribesCoresCachesAndNodes) {
  const Topology machine = Machine();
  EXPECT_EQ(machine.num_cpus(), 16);
  ASSERT_EQ(machine.cores.size(), 8u);
  EXPECT_THAT(machine.cores[5], ElementsAre(10, 11));
  EXPECT_EQ(machine.num_numa_nodes, 2);
  EXPECT_EQ(machine.last_level_cache_bytes(), 64u << 20);
}

TEST(Topology, CountsOnlyWhatTheMaskLeaves) {
  const Topology machine = *SyntheticTopology("numa:2 l3:1(size=4096) core:4 pu:2", {1, 2, 3});
  ASSERT_EQ(machine.cores.size(), 2u);
  EXPECT_THAT(machine.cores[0], ElementsAre(1));
  EXPECT_THAT(machine.cores[1], ElementsAre(2, 3));
  EXPECT_EQ(machine.num_numa_nodes, 1);
  EXPECT_EQ(machine.last_level_cache_bytes(), 4096u);
}

TEST(Topology, RefusesAMaskOutsideTheMachineAndABadDescription) {
  EXPECT_FALSE(SyntheticTopology("core:4", {77}));
  EXPECT_FALSE(SyntheticTopology("core:4", {}));
  const auto bad = SyntheticTopology("four cores, please", {0});
  ASSERT_FALSE(bad);
  EXPECT_THAT(bad.error().message, HasSubstr("four cores, please"));
}

TEST(Topology, DefaultsToOneCpuPerPhysicalCore) {
  EXPECT_THAT(*CpusForRank(Machine(), {}, std::nullopt), ElementsAre(0, 2, 4, 6, 8, 10, 12, 14));
}

TEST(Topology, UsesSiblingsOnlyAfterAllCores) {
  EXPECT_THAT(*CpusForRank(Machine(), {}, 3), ElementsAre(0, 2, 4));
  EXPECT_THAT(*CpusForRank(Machine(), {}, 10), ElementsAre(0, 2, 4, 6, 8, 10, 12, 14, 1, 3));
  EXPECT_EQ(CpusForRank(Machine(), {}, 16)->size(), 16u);
}

TEST(Topology, RanksDivideTheCoresWithoutOverlap) {
  EXPECT_THAT(*CpusForRank(Machine(), {.rank = 1, .count = 2}, std::nullopt),
              ElementsAre(8, 10, 12, 14));
  EXPECT_THAT(*CpusForRank(Machine(), {.rank = 1, .count = 2}, 5), ElementsAre(8, 10, 12, 14, 9));
  for (const int count : {1, 2, 3, 5, 8}) {
    std::set<int> used;
    size_t smallest = 99, largest = 0;
    for (int rank = 0; rank < count; ++rank) {
      const auto cpus = CpusForRank(Machine(), {.rank = rank, .count = count}, std::nullopt);
      ASSERT_TRUE(cpus);
      used.insert(cpus->begin(), cpus->end());
      smallest = std::min(smallest, cpus->size());
      largest = std::max(largest, cpus->size());
    }
    EXPECT_EQ(used.size(), 8u) << count;
    EXPECT_LE(largest - smallest, 1u) << count;
  }
}

TEST(Topology, MoreRanksThanCoresShareThem) {
  const Topology machine = Machine(4);  // two cores
  EXPECT_THAT(*CpusForRank(machine, {.rank = 0, .count = 3}, std::nullopt), ElementsAre(0));
  EXPECT_THAT(*CpusForRank(machine, {.rank = 1, .count = 3}, std::nullopt), ElementsAre(2));
  EXPECT_THAT(*CpusForRank(machine, {.rank = 2, .count = 3}, std::nullopt), ElementsAre(0));
}

TEST(Topology, ThreadsBeyondTheShareAreAnErrorThatSaysTheLimit) {
  const auto cpus = CpusForRank(Machine(), {.rank = 1, .count = 2}, 9);
  ASSERT_FALSE(cpus);
  EXPECT_THAT(cpus.error().message, HasSubstr("9 threads"));
  EXPECT_THAT(cpus.error().message, HasSubstr("at most 8"));
  EXPECT_FALSE(CpusForRank(Machine(), {}, 0));
  EXPECT_FALSE(CpusForRank(Machine(), {}, -4));
}

TEST(Topology, CpuQuotaLimitsTheDefaultButNotAWish) {
  Topology machine = Machine();
  machine.cpu_quota = 3.7;
  EXPECT_EQ(CpusForRank(machine, {}, std::nullopt)->size(), 3u);
  EXPECT_EQ(CpusForRank(machine, {.rank = 0, .count = 2}, std::nullopt)->size(), 1u);
  EXPECT_EQ(CpusForRank(machine, {}, 6)->size(), 6u);
  machine.cpu_quota = 0.5;
  EXPECT_EQ(CpusForRank(machine, {}, std::nullopt)->size(), 1u);
  machine.cpu_quota = 64;
  EXPECT_EQ(CpusForRank(machine, {}, std::nullopt)->size(), 8u);
}

TEST(Topology, ReadsThisMachine) {
  const auto machine = ReadTopology();
  ASSERT_TRUE(machine) << machine.error().message;
  EXPECT_FALSE(machine->cpu.name.empty());
  EXPECT_EQ(machine->cpu.cache_bytes.size(), machine->caches.size());
  EXPECT_EQ(machine->num_cpus(), std::ssize(*CurrentAffinity()));
  const auto cpus = CpusForThisRank({}, std::nullopt);
  ASSERT_TRUE(cpus);
  EXPECT_GE(cpus->size(), 1u);
  for (const int cpu : *cpus) EXPECT_THAT(*CurrentAffinity(), ::testing::Contains(cpu));
}

TEST(SplitCpus, GivesTheHostLaneTheLastOnesOrNone) {
  EXPECT_THAT(SplitCpus({0, 2, 4}, 1)->compute, ElementsAre(0, 2));
  EXPECT_THAT(SplitCpus({0, 2, 4}, 1)->host, ElementsAre(4));
  EXPECT_THAT(SplitCpus({0, 2, 4}, 0)->compute, ElementsAre(0, 2, 4));
  EXPECT_TRUE(SplitCpus({0, 2, 4}, 0)->host.empty());
  for (const int num_host : {-1, 3, 4}) {
    EXPECT_EQ(SplitCpus({0, 2, 4}, num_host).error().message,
              fmt::format("{} of this rank's 3 threads cannot be the host lane's: "
                          "host_threads must be 0 to 2",
                          num_host));
  }
}

}  // namespace
}  // namespace convene::hardware
