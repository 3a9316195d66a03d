#include "hardware/numa.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <linux/mempolicy.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cstdlib>
#include <optional>

#include "hardware/affinity.h"
#include "hardware/huge_buffer.h"
#include "hardware/topology.h"

namespace convene::hardware {
namespace {

using ::testing::AnyOf;
using ::testing::HasSubstr;

// The policy of the pages, as the system has it; -1: it does not tell.
int ModeOf(std::span<std::byte> memory) {
  int mode = 0;
  const long told = syscall(SYS_get_mempolicy, &mode, nullptr, 0, memory.data(), MPOL_F_ADDR);
  return told == 0 ? mode & ~MPOL_MODE_FLAGS : -1;
}

TEST(PlaceMemory, InterleavesOverTheNodesOfTheThreadsAndLeavesMemoryUsable) {
  const Result<Topology> topology = ReadTopology();
  ASSERT_TRUE(topology) << topology.error().message;
  std::vector<int> all;
  for (const auto& core : topology->cores) all.insert(all.end(), core.begin(), core.end());
  for (const NumaPolicy policy : {NumaPolicy::kAuto, NumaPolicy::kInterleave, NumaPolicy::kLocal}) {
    Result<HugeBuffer> buffer = HugeBuffer::Allocate(size_t{8} << 20, "a test");
    ASSERT_TRUE(buffer) << buffer.error().message;
    const Result<int> nodes = PlaceMemory(buffer->bytes(), all, policy);
    const bool is_refused = !nodes && nodes.error().message.starts_with("cannot interleave");
    ASSERT_TRUE(nodes || (policy == NumaPolicy::kInterleave && is_refused))
        << nodes.error().message;
    for (std::byte& byte : buffer->bytes()) byte = std::byte{1};
    if (!nodes) continue;
    const int most = policy == NumaPolicy::kLocal ? 1 : topology->num_numa_nodes;
    const int least = policy == NumaPolicy::kInterleave ? most : 1;
    EXPECT_THAT(*nodes, AnyOf(least, most));
    if (*nodes > 1) {
      EXPECT_EQ(ModeOf(buffer->bytes()), MPOL_INTERLEAVE);
    }
  }
}

// Of two nodes that this machine does not have, so that it refuses to interleave over them.
TEST(PlaceMemory, IsLocalWhereTheSystemRefusesUnlessInterleavingWasAskedFor) {
  setenv("HWLOC_SYNTHETIC", "numa:2(indexes=40,41) core:1 pu:1", /*overwrite=*/1);
  setenv("HWLOC_THISSYSTEM", "1", /*overwrite=*/1);
  Result<HugeBuffer> buffer = HugeBuffer::Allocate(size_t{2} << 20, "a test");
  ASSERT_TRUE(buffer) << buffer.error().message;
  const Result<int> chosen = PlaceMemory(buffer->bytes(), {0, 1}, NumaPolicy::kAuto);
  const Result<int> asked = PlaceMemory(buffer->bytes(), {0, 1}, NumaPolicy::kInterleave);
  unsetenv("HWLOC_SYNTHETIC");
  unsetenv("HWLOC_THISSYSTEM");
  ASSERT_TRUE(chosen) << chosen.error().message;
  EXPECT_EQ(*chosen, 1);
  ASSERT_FALSE(asked) << *asked;
  EXPECT_THAT(asked.error().message, HasSubstr("cannot interleave memory over 2 NUMA nodes"));
}

TEST(PlaceMemory, ThreadsOfOneNodeNeedNoInterleaving) {
  const Result<std::vector<int>> cpus = CurrentAffinity();
  ASSERT_TRUE(cpus);
  Result<HugeBuffer> buffer = HugeBuffer::Allocate(size_t{2} << 20, "a test");
  ASSERT_TRUE(buffer);
  EXPECT_EQ(*PlaceMemory(buffer->bytes(), {cpus->front()}, NumaPolicy::kInterleave), 1);
  EXPECT_EQ(*PlaceMemory({}, {cpus->front()}, NumaPolicy::kInterleave), 1);
}

// 2 nodes of 2 cores with memory: CPUs 0 and 1, 2 and 3.
constexpr const char* kTwoNodes = "numa:2 core:2 pu:1";

std::optional<int> NodeOf(const char* machine, const std::vector<int>& cpus) {
  const Result<NumaHome> home = HomeOf(cpus, machine);
  EXPECT_TRUE(home) << home.error().message;
  EXPECT_FALSE(home->is_bound) << "nobody has bound memory";
  return home->node;
}

TEST(HomeOf, IsTheOneNodeOfAllThreads) {
  EXPECT_EQ(NodeOf(kTwoNodes, {0, 1}), 0);
  EXPECT_EQ(NodeOf(kTwoNodes, {3}), 1);
  EXPECT_EQ(NodeOf(kTwoNodes, {1, 2}), std::nullopt) << "pages lie where they are first written";
  EXPECT_EQ(NodeOf("numa:1 core:4 pu:1", {0}), std::nullopt) << "there is nothing to tell";
  EXPECT_EQ(NodeOf("pack:2 [numa] [numa] core:2 pu:1", {0}), std::nullopt) << "two are as near";
  EXPECT_FALSE(HomeOf({0}, "no machine"));
}

TEST(HomeOf, OfThisMachineIsOneOfItsNodes) {
  const Result<std::vector<int>> cpus = CurrentAffinity();
  ASSERT_TRUE(cpus);
  const Result<NumaHome> home = HomeOf({cpus->front()});
  ASSERT_TRUE(home) << home.error().message;
  EXPECT_TRUE(home->node || !home->is_bound);
}

}  // namespace
}  // namespace convene::hardware
