#include "hardware/cpu_identity.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "hardware/topology.h"

namespace convene::hardware {
namespace {

using ::testing::HasSubstr;

CpuIdentity Zen(const char* cpuid) {
  return {.name = "AMD EPYC",
          .cpuid = cpuid,
          .cache_bytes = {uint64_t{32} << 10, uint64_t{1} << 20, uint64_t{32} << 20}};
}

// Signatures as the manufacturers' lists have them.
TEST(CpuIdentity, SignaturesAreReadAsManufacturersSay) {
  EXPECT_EQ(DescribeCpuid("AuthenticAMD", 0x00A10F11),
            "AuthenticAMD family 25 model 17 stepping 1");  // Zen 4
  EXPECT_EQ(DescribeCpuid("AuthenticAMD", 0x00B00F21),
            "AuthenticAMD family 26 model 2 stepping 1");  // Zen 5
  EXPECT_EQ(DescribeCpuid("GenuineIntel", 0x000806F8),
            "GenuineIntel family 6 model 143 stepping 8");  // Sapphire Rapids
  // Of other families the extended model is none.
  EXPECT_EQ(DescribeCpuid("GenuineIntel", 0x00090543), "GenuineIntel family 5 model 4 stepping 3");
}

TEST(CpuIdentity, TheSameKindIsTheSame) {
  EXPECT_EQ(WhyAnotherCpu(Zen("AuthenticAMD family 26 model 2 stepping 1"),
                          Zen("AuthenticAMD family 26 model 2 stepping 1")),
            "");
  // Without a name CPUID tells, and without CPUID the name.
  const CpuIdentity unnamed{.cpuid = "GenuineIntel family 6 model 143 stepping 8"};
  EXPECT_EQ(WhyAnotherCpu(unnamed, unnamed), "");
  const CpuIdentity elsewhere{.name = "Example 9000"};
  EXPECT_EQ(WhyAnotherCpu(elsewhere, elsewhere), "");
}

TEST(CpuIdentity, TheSameNameIsNotEnough) {
  const CpuIdentity zen4 = Zen("AuthenticAMD family 25 model 17 stepping 1");
  CpuIdentity zen5 = Zen("AuthenticAMD family 26 model 2 stepping 1");
  EXPECT_EQ(WhyAnotherCpu(zen4, zen5),
            "it was measured on AMD EPYC (AuthenticAMD family 25 model 17 stepping 1), and this is "
            "AMD EPYC (AuthenticAMD family 26 model 2 stepping 1)");
  const CpuIdentity before = zen5;
  zen5.cache_bytes.back() *= 3;
  EXPECT_EQ(WhyAnotherCpu(before, zen5),
            "it was measured with caches of 32.0 KiB, 1.00 MiB, 32.0 MiB, and this CPU has caches "
            "of 32.0 KiB, 1.00 MiB, 96.0 MiB");
}

TEST(CpuIdentity, WhatIsNotKnownIsLikeNothing) {
  const CpuIdentity nothing;
  EXPECT_THAT(WhyAnotherCpu(nothing, nothing), HasSubstr("neither a name nor a CPUID"));
  const CpuIdentity here = Zen("AuthenticAMD family 26 model 2 stepping 1");
  EXPECT_THAT(WhyAnotherCpu(nothing, here), HasSubstr("measured on a CPU without a name"));
  CpuIdentity of_before = here;
  of_before.cpuid = "";
  of_before.cache_bytes = {};
  EXPECT_THAT(WhyAnotherCpu(of_before, here),
              HasSubstr("does not say on which kind of AMD EPYC it was measured"));
}

#if defined(__x86_64__)
TEST(CpuIdentity, ThisMachineHasOne) {
  EXPECT_THAT(ReadCpuid(), ::testing::MatchesRegex("[A-Za-z ]+ family [0-9]+ model [0-9]+ "
                                                   "stepping [0-9]+"));
  const auto topology = ReadTopology();
  ASSERT_TRUE(topology);
  EXPECT_EQ(topology->cpu.cpuid, ReadCpuid());
  EXPECT_EQ(WhyAnotherCpu(topology->cpu, topology->cpu), "");
}
#endif

}  // namespace
}  // namespace convene::hardware
