#include "engine/crossovers.h"

#include <gtest/gtest.h>

#include <utility>
#include <vector>

#include "comm/threads/thread_group.h"

namespace convene::engine {
namespace {

hardware::Profile Measured() {
  hardware::Profile profile;
  profile.cpu_name = "Example 9000";
  profile.isa = "avx2";
  profile.cpus = {0, 4, 1, 5};  // in the order in which cores lie, not of their numbers
  profile.dense_from_rows = 24;
  profile.expand_from_tokens = 16;
  return profile;
}

ComputesWith With(const char* isa, std::vector<int> cpus) {
  return {.cpu_name = "Example 9000", .isa = isa, .cpus = std::move(cpus)};
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
  for (const char* name : {"Example 9001", ""}) {
    here.cpu_name = name;
    EXPECT_EQ(CrossoversOf(profile, here), Crossovers()) << name;
    EXPECT_FALSE(StreamingOf(profile, here).has_value()) << name;
  }
  // What is not known is like nothing.
  profile.cpu_name = "";
  EXPECT_FALSE(StreamingOf(profile, here).has_value());
  EXPECT_FALSE(ComputesHereWith("avx2", {0}).cpu_name.empty());
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
