#include "cost/hierarchical_roofline.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "cost/presets.h"

namespace convene::cost {
namespace {

using ::testing::HasSubstr;

std::vector<MemoryTier> TiersOfPreset(const char* name) {
  const Result<MachineProfile> machine = Preset(name);
  EXPECT_TRUE(machine.ok());
  const auto tiers = TiersOf(*machine, "bf16");
  EXPECT_TRUE(tiers.ok()) << tiers.error().message;
  return *tiers;
}

// MoE-Lightning, Figs. 3 and 5: Mixtral 8x7B's experts on an L4 at micro-batch 128, where all eight
// experts are read for 128 tokens of two experts each: 2 * 128 * 2 / (8 * 2) FLOP per byte.
TEST(HierarchicalRoofline, HasTheTurningPointsOfThePaper) {
  const auto tiers = TiersOfPreset("l4-gcp");
  ASSERT_EQ(tiers.size(), 2u);
  const HierarchicalRoofline roofline(tiers[0], tiers[1]);
  EXPECT_NEAR(roofline.FirstTurningPoint()->intensity, 81.25, 1e-9);
  EXPECT_NEAR(roofline.FirstTurningPoint()->flops_per_second, 1.3e12, 1);
  EXPECT_NEAR(roofline.SecondTurningPoint(32).intensity, 600, 1e-9);
  EXPECT_NEAR(roofline.BalancePoint(32)->intensity, 600, 1e-9);
  EXPECT_NEAR(roofline.BalancePoint(32)->flops_per_second, 9.6e12, 1);
}

TEST(HierarchicalRoofline, TheLowestRoofHolds) {
  const auto tiers = TiersOfPreset("l4-gcp");
  const HierarchicalRoofline roofline(tiers[0], tiers[1]);
  // I_i = 32: memory would give 9.6 TFLOP/s.
  const TierWork little = {.flops = 32, .fast_bytes = 1, .slow_bytes = 1};
  EXPECT_NEAR(roofline.InFast(little), 16e9 * 32, 1);
  EXPECT_EQ(roofline.BoundInFast(little), RooflineBound::kLink);
  const TierWork much = {.flops = 32, .fast_bytes = 1, .slow_bytes = 0.01};
  EXPECT_NEAR(roofline.InFast(much), 9.6e12, 1);
  EXPECT_EQ(roofline.BoundInFast(much), RooflineBound::kFastMemory);
  const TierWork resident = {.flops = 1e4, .fast_bytes = 1};
  EXPECT_NEAR(roofline.InFast(resident), 242e12, 1);
  EXPECT_EQ(roofline.BoundInFast(resident), RooflineBound::kFastCompute);
  EXPECT_NEAR(*roofline.InSlow(4), 400e9, 1);
  EXPECT_NEAR(*roofline.InSlow(400), 1.3e12, 1);
}

TEST(HierarchicalRoofline, BeyondTheFastTiersPeakThereIsNoBalance) {
  const auto tiers = TiersOfPreset("t4-gcp");
  const HierarchicalRoofline roofline(tiers[0], tiers[1]);
  EXPECT_TRUE(roofline.BalancePoint(200));
  EXPECT_FALSE(roofline.BalancePoint(300));
  EXPECT_NEAR(roofline.SecondTurningPoint(300).flops_per_second, 65e12, 1);
}

TEST(HierarchicalRoofline, NothingComputesAtADisk) {
  MachineProfile machine;
  machine.machine.f32_gflops = 100;
  machine.machine.bf16_gflops = 400;
  machine.machine.int8_gops = 800;
  machine.machine.read_gbps = 20;
  machine.machine.disk_gbps = 2;
  const auto tiers = TiersOf(machine, "int8", 3e9);
  ASSERT_TRUE(tiers.ok());
  ASSERT_EQ(tiers->size(), 2u);
  EXPECT_EQ(tiers->front().flops, 800e9);
  EXPECT_EQ(tiers->front().bytes, 3e9);
  const HierarchicalRoofline roofline((*tiers)[0], (*tiers)[1]);
  EXPECT_EQ(roofline.FirstTurningPoint()->intensity, 0);
  EXPECT_EQ(roofline.InSlow(10), 0);
  EXPECT_NEAR(roofline.SecondTurningPoint(8).intensity, 80, 1e-9);
  EXPECT_EQ(TiersOf(machine, "bf16")->front().flops, 400e9);
  EXPECT_EQ(TiersOf(machine, "f32")->front().flops, 100e9);
}

TEST(HierarchicalRoofline, WithoutAHostsFiguresTheFirstTurningPointIsNotKnown) {
  const auto tiers = TiersOfPreset("l4-pcie4");
  ASSERT_EQ(tiers.size(), 2u);
  const HierarchicalRoofline roofline(tiers[0], tiers[1]);
  EXPECT_FALSE(roofline.FirstTurningPoint());
  EXPECT_FALSE(roofline.InSlow(1));
  EXPECT_NEAR(roofline.SecondTurningPoint(32).intensity, 300, 1e-9);  // 32 GB/s
}

TEST(MemoryTiers, SaysWhatIsMissing) {
  MachineProfile machine;
  EXPECT_THAT(TiersOf(machine, "bf16").error().message, HasSubstr("convene measure"));
  machine.machine.f32_gflops = 100;
  machine.machine.read_gbps = 20;
  EXPECT_THAT(TiersOf(machine, "bf16").error().message, HasSubstr("--disk"));
}

TEST(MemoryTiers, AHostBelowAGpuHasADiskBelowItself) {
  Result<MachineProfile> machine = Preset("t4-gcp");
  ASSERT_TRUE(machine.ok());
  machine->machine.disk_gbps = 1;
  const auto tiers = TiersOf(*machine, "int4");
  ASSERT_EQ(tiers->size(), 3u);
  EXPECT_EQ((*tiers)[0].flops, 65e12);
  EXPECT_EQ((*tiers)[1].bytes, double{uint64_t{192} << 30});
  EXPECT_EQ((*tiers)[2].up_bytes_per_second, 1e9);
}

}  // namespace
}  // namespace convene::cost
