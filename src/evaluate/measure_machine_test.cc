#include "evaluate/measure_machine.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "hardware/topology.h"
#include "kernels/choose_kernels.h"
#include "kernels/streaming_choice.h"

namespace convene::evaluate {
namespace {

using testing::HasSubstr;

hardware::Profile Measured(const MeasureOptions& options) {
  const auto topology = hardware::ReadTopology();
  CHECK(topology.ok());
  hardware::ThreadPool pool({topology->cores.front().front()});
  const auto profile = MeasureMachine(*topology, pool, *hardware::ChooseIsa(), options);
  CHECK(profile.ok(), "{}", profile.error().message);
  EXPECT_EQ(profile->cpu(), topology->cpu);
  EXPECT_EQ(profile->cpus, pool.cpus());
  EXPECT_EQ(profile->isa, hardware::IsaName(*hardware::ChooseIsa()));
  EXPECT_EQ(profile->last_level_cache_bytes, topology->last_level_cache_bytes());
  EXPECT_EQ(profile->num_numa_nodes, topology->num_numa_nodes);
  EXPECT_FALSE(profile->date.empty());
  return *profile;
}

// In a time so short that no figure is worth anything; what is there is what was measured.
TEST(MeasureMachine, FindsOutAllThatAProfileHas) {
  const hardware::Profile profile = Measured({.budget_s = 0.01,
                                              .disk_directory = testing::TempDir(),
                                              .disk_is_required = true,
                                              .choices_of = *kernels::ChooseKernels()});
  EXPECT_GT(profile.f32_gflops, 0);
  EXPECT_GT(profile.bf16_gflops, 0);
  EXPECT_GT(profile.int8_gops, 0);
  EXPECT_GT(profile.read_gbps, 0);
  EXPECT_GT(profile.disk_gbps, 0);
  EXPECT_GE(profile.huge_page_share, 0);
  EXPECT_LE(profile.huge_page_share, 1);
  EXPECT_GE(profile.num_interleaved_nodes, 1);
  // None where the caches are too large, or the time too short, to tell the ways apart.
  if (!profile.panel_streaming.empty()) {
    EXPECT_TRUE(kernels::StreamingChoice::FromNumbers(profile.panel_streaming).has_value());
  }
}

TEST(MeasureMachine, WithoutKernelsNothingIsChosen) {
  const hardware::Profile profile =
      Measured({.budget_s = 0.01, .disk_directory = testing::TempDir(), .choices_of = nullptr});
  EXPECT_EQ(profile.dense_from_rows, 0);
  EXPECT_EQ(profile.expand_from_tokens, 0);
  EXPECT_TRUE(profile.panel_streaming.empty());
}

TEST(MeasureMachine, ADiskThatWasAskedForMustBeThere) {
  const auto topology = hardware::ReadTopology();
  ASSERT_TRUE(topology);
  hardware::ThreadPool pool({topology->cores.front().front()});
  const auto profile = MeasureMachine(*topology, pool, *hardware::ChooseIsa(),
                                      {.budget_s = 0.01,
                                       .disk_directory = testing::TempDir() + "no/such",
                                       .disk_is_required = true});
  ASSERT_FALSE(profile);
  EXPECT_THAT(profile.error().message, HasSubstr("no/such is not a directory"));
}

}  // namespace
}  // namespace convene::evaluate
