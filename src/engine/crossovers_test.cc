#include "engine/crossovers.h"

#include <gtest/gtest.h>

#include <utility>
#include <vector>

#include "comm/threads/thread_group.h"

namespace convene::engine {
namespace {

const hardware::CpuIdentity kExample{.name = "Example 9000",
                                     .cpuid = "GenuineExample family 6 model 1 stepping 2",
                                     .cache_bytes = {32768, 1048576}};

hardware::Profile Measured() {
  hardware::Profile profile;
  profile.SetCpu(kExample);
  profile.isa = "avx2";
  profile.cpus = {0, 4, 1, 5};  // in the order in which cores lie, not of their numbers
  profile.dense_from_rows = 24;
  profile.expand_from_tokens = 16;
  return profile;
}

ComputesWith With(const char* isa, std::vector<int> cpus) {
  return {.cpu = kExample, .isa = isa, .cpus = std::move(cpus)};
}

TEST(Crossovers, AreThoseMeasuredOnTheSameCpusOrMore) {
  const Crossovers measured{.dense_from_rows = 24, .expand_from_tokens = 16};
  EXPECT_EQ(CrossoversOf(Measured(), With("avx2", {0, 4, 1, 5})), measured);
  // Two ranks of a host, and fewer threads.
  EXPECT_EQ(CrossoversOf(Measured(), With("avx2", {0, 4})), measured);
  EXPECT_EQ(CrossoversOf(Measured(), With("avx2", {1, 5})), measured);
  EXPECT_EQ(CrossoversOf(Measured(), With("avx2", {5})), measured);
}

TEST(Crossovers, AreTheDefaultsWhereSomethingElseWasMeasured) {
  EXPECT_EQ(CrossoversOf(std::nullopt, With("avx2", {0})), Crossovers());
  EXPECT_EQ(CrossoversOf(Measured(), With("amx", {0})), Crossovers());
  EXPECT_EQ(CrossoversOf(Measured(), With("avx2", {0, 2})), Crossovers());
}

TEST(Crossovers, PanelsAreReadAsWasMeasuredOnTheSameCpusOrMore) {
  hardware::Profile profile = Measured();
  EXPECT_FALSE(StreamingOf(profile, With("avx2", {0, 4})).has_value());  // not measured
  const kernels::StreamingChoice measured(kernels::kStreamingWays[2]);
  profile.panel_streaming = measured.numbers();
  EXPECT_EQ(StreamingOf(profile, With("avx2", {0, 4}))->numbers(), measured.numbers());
  EXPECT_FALSE(StreamingOf(profile, With("amx", {0})).has_value());
  EXPECT_FALSE(StreamingOf(profile, With("avx2", {0, 2})).has_value());
  EXPECT_FALSE(StreamingOf(std::nullopt, With("avx2", {0})).has_value());
}

TEST(Crossovers, AreNotThoseOfAnotherCpuWithTheSameInstructionsAndNumbers) {
  hardware::Profile profile = Measured();
  profile.panel_streaming = kernels::StreamingChoice(kernels::kStreamingWays[2]).numbers();
  ComputesWith here = With("avx2", {0, 4});
  EXPECT_TRUE(StreamingOf(profile, here).has_value());
  hardware::CpuIdentity other_name = kExample, other_kind = kExample, other_caches = kExample;
  other_name.name = "Example 9001";
  other_kind.cpuid = "GenuineExample family 6 model 2 stepping 2";
  other_caches.cache_bytes.pop_back();
  for (const hardware::CpuIdentity& cpu : {other_name, other_kind, other_caches, {}}) {
    here.cpu = cpu;
    EXPECT_EQ(CrossoversOf(profile, here), Crossovers()) << cpu.name << cpu.cpuid;
    EXPECT_FALSE(StreamingOf(profile, here).has_value()) << cpu.name << cpu.cpuid;
  }
  // What is not known is like nothing.
  profile.SetCpu({});
  EXPECT_FALSE(StreamingOf(profile, here).has_value());
  EXPECT_FALSE(ComputesHereWith("avx2", {0}).cpu.name.empty());
}

TEST(Crossovers, AreNotThoseOfAProfileThatDoesNotSayOfWhichKindOfCpuItIs) {
  hardware::Profile of_before = Measured();
  of_before.SetCpu({.name = kExample.name});
  EXPECT_EQ(CrossoversOf(of_before, With("avx2", {0, 4})), Crossovers());
}

TEST(Crossovers, AreRankZerosOnAllRanks) {
  comm::RunOnThreads(3, [](comm::Group& group) {
    const Crossovers mine{.dense_from_rows = 8 * group.rank(),
                          .expand_from_tokens = 100 + group.rank()};
    const Crossovers zeros{.dense_from_rows = 0, .expand_from_tokens = 100};
    EXPECT_EQ(AgreeOnCrossovers(&group, mine), zeros) << group.rank();
  });
  const Crossovers alone{.dense_from_rows = 3, .expand_from_tokens = 5};
  EXPECT_EQ(AgreeOnCrossovers(nullptr, alone), alone);
}

}  // namespace
}  // namespace convene::engine
