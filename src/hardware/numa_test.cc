#include "hardware/numa.h"

#include <gtest/gtest.h>

#include "hardware/affinity.h"
#include "hardware/huge_buffer.h"
#include "hardware/topology.h"

namespace convene::hardware {
namespace {

TEST(PlaceMemory, InterleavesOverTheNodesOfTheThreadsAndLeavesMemoryUsable) {
  const Result<Topology> topology = ReadTopology();
  ASSERT_TRUE(topology) << topology.error().message;
  std::vector<int> all;
  for (const auto& core : topology->cores) all.insert(all.end(), core.begin(), core.end());
  for (const NumaPolicy policy : {NumaPolicy::kAuto, NumaPolicy::kInterleave, NumaPolicy::kLocal}) {
    Result<HugeBuffer> buffer = HugeBuffer::Allocate(size_t{8} << 20, "a test");
    ASSERT_TRUE(buffer) << buffer.error().message;
    const Result<int> nodes = PlaceMemory(buffer->bytes(), all, policy);
    ASSERT_TRUE(nodes) << nodes.error().message;
    EXPECT_EQ(*nodes, policy == NumaPolicy::kLocal ? 1 : topology->num_numa_nodes);
    for (std::byte& byte : buffer->bytes()) byte = std::byte{1};
  }
}

TEST(PlaceMemory, ThreadsOfOneNodeNeedNoInterleaving) {
  const Result<std::vector<int>> cpus = CurrentAffinity();
  ASSERT_TRUE(cpus);
  Result<HugeBuffer> buffer = HugeBuffer::Allocate(size_t{2} << 20, "a test");
  ASSERT_TRUE(buffer);
  EXPECT_EQ(*PlaceMemory(buffer->bytes(), {cpus->front()}, NumaPolicy::kInterleave), 1);
  EXPECT_EQ(*PlaceMemory({}, {cpus->front()}, NumaPolicy::kInterleave), 1);
}

}  // namespace
}  // namespace convene::hardware
