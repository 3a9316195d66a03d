#include "hardware/isa.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <set>
#include <string>
#include <vector>

#include "hardware/cpu_identity.h"

namespace convene::hardware {
namespace {

using ::testing::HasSubstr;

std::string Nothing() { return {}; }
std::string NoSuchUnit() { return "this CPU has no such unit"; }

constexpr IsaCandidate kBestIsMissing[] = {
    {Isa::kAvx512Bf16, "fast", NoSuchUnit},
    {Isa::kReference, "slow", Nothing},
};
constexpr IsaCandidate kAllRun[] = {
    {Isa::kAvx512Bf16, "fast", Nothing},
    {Isa::kReference, "slow", Nothing},
};

TEST(Isa, TakesTheBestThatRuns) {
  EXPECT_EQ(*ChooseIsa(std::nullopt, kAllRun), Isa::kAvx512Bf16);
  EXPECT_EQ(*ChooseIsa(std::nullopt, kBestIsMissing), Isa::kReference);
}

TEST(Isa, ForcedNameWinsOverABetterOne) {
  EXPECT_EQ(*ChooseIsa("slow", kAllRun), Isa::kReference);
  EXPECT_EQ(*ChooseIsa("fast", kAllRun), Isa::kAvx512Bf16);
}

TEST(Isa, ForcedButUnsupportedFailsWithTheReason) {
  const Result<Isa> isa = ChooseIsa("fast", kBestIsMissing);
  ASSERT_FALSE(isa);
  EXPECT_THAT(isa.error().message, HasSubstr("CONVENE_ISA=fast"));
  EXPECT_THAT(isa.error().message, HasSubstr("this CPU has no such unit"));
}

TEST(Isa, UnknownNameFailsAndListsTheKnownOnes) {
  for (const char* name : {"avx1024", "FAST", " fast"}) {
    const Result<Isa> isa = ChooseIsa(name, kAllRun);
    ASSERT_FALSE(isa) << name;
    EXPECT_THAT(isa.error().message, HasSubstr(name));
    EXPECT_THAT(isa.error().message, HasSubstr("fast, slow"));
  }
}

TEST(Isa, TheEnvironmentForcesAName) {
  setenv("CONVENE_ISA", "reference", 1);
  const Result<Isa> forced = ChooseIsa();
  setenv("CONVENE_ISA", "avx1024", 1);
  const Result<Isa> unknown = ChooseIsa();
  unsetenv("CONVENE_ISA");
  ASSERT_TRUE(forced);
  EXPECT_EQ(*forced, Isa::kReference);
  EXPECT_FALSE(unknown);
  EXPECT_EQ(*ChooseIsa(), *ChooseIsa(std::nullopt, IsaCandidates()));
}

TEST(Isa, FunctionsOfSeveralVersionsFollowTheChoiceOfTheProcess) {
  const Isa isa = IsaOfProcess();
  const Result<Isa> chosen = ChooseIsa();
  EXPECT_EQ(isa, chosen ? *chosen : Isa::kReference);
  EXPECT_EQ(VersionForIsa(1, 2, 3), isa >= Isa::kAvx512 ? 3 : isa >= Isa::kAvx2 ? 2 : 1);
}

TEST(Isa, ListHasUniqueNamesAndEndsWithTheReference) {
  std::set<std::string> names;
  for (const IsaCandidate& candidate : IsaCandidates()) {
    EXPECT_TRUE(names.insert(candidate.name).second) << candidate.name;
    EXPECT_STREQ(IsaName(candidate.isa), candidate.name);
  }
  EXPECT_EQ(IsaCandidates().back().isa, Isa::kReference);
  EXPECT_EQ(IsaCandidates().back().missing(), "");
}

TEST(Isa, WhatRunsOneRunsAllWorseOnes) {
  bool runs = false;
  for (const IsaCandidate& candidate : IsaCandidates()) {
    EXPECT_TRUE(!runs || candidate.missing().empty()) << candidate.name;
    runs = candidate.missing().empty();
  }
  for (size_t i = 1; i < IsaCandidates().size(); ++i) {
    EXPECT_GT(IsaCandidates()[i - 1].isa, IsaCandidates()[i].isa);
  }
}

// Cascade Lake, Ice Lake and Rocket Lake are such CPUs.
TEST(Isa, ACpuWithVnniAndWithoutBf16KeepsItsVnni) {
  if (!ChooseIsa("avx512_vnni", IsaCandidates())) GTEST_SKIP() << "no AVX-512 VNNI here";
  std::vector<IsaCandidate> there(IsaCandidates().begin(), IsaCandidates().end());
  for (IsaCandidate& candidate : there) {
    if (candidate.isa >= Isa::kAvx512Bf16) candidate.missing = NoSuchUnit;
  }
  EXPECT_EQ(*ChooseIsa(std::nullopt, there), Isa::kAvx512Vnni);
}

TEST(Isa, EveryCandidateRunsOrSaysWhyNot) {
  const std::vector<std::string> unsupported = UnsupportedIsas();
  size_t num_missing = 0;
  for (const IsaCandidate& candidate : IsaCandidates()) {
    const Result<Isa> forced = ChooseIsa(candidate.name, IsaCandidates());
    if (forced) {
      EXPECT_EQ(*forced, candidate.isa);
    } else {
      ASSERT_LT(num_missing, unsupported.size());
      EXPECT_THAT(unsupported[num_missing++], HasSubstr(candidate.name));
    }
  }
  EXPECT_EQ(num_missing, unsupported.size());
}

TEST(Cpu, VendorAndFamilyAreThoseOfItsCpuid) {
  const std::string cpuid = ReadCpuid();
  if (cpuid.empty()) GTEST_SKIP() << "CPUs of this architecture tell neither";
  EXPECT_EQ(CpuIsAmd(), cpuid.starts_with("AuthenticAMD ")) << cpuid;
  EXPECT_THAT(cpuid, HasSubstr(" family " + std::to_string(CpuFamily()) + " "));
}

}  // namespace
}  // namespace convene::hardware
