#include "evaluate/known_costs.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>

#include "base/version.h"
#include "comm/threads/thread_group.h"
#include "cost/machine_profile.h"
#include "evaluate/machine_profile_file.h"
#include "evaluate/slow_group_test.h"
#include "hardware/topology.h"
#include "kernels/choose_kernels.h"

namespace convene::evaluate {
namespace {

using testing::HasSubstr;

// Of all ranks together; far slower than memory.
constexpr double kLinkBytesPerSecond = 4e8;

cost::StepCosts CostsOfLink(int num_ranks, double bytes_per_second) {
  cost::StepCosts costs{.num_ranks = num_ranks,
                        .weights = "int8",
                        .version = std::string(kVersion),
                        .date = "2026-01-02T03:04:05Z"};
  costs.exchange.seconds = {.at = {1, 1e9}, .value = {1e-5, 1e-5 + 1e9 / bytes_per_second}};
  return costs;
}

std::string WriteProfile(const std::string& name, const cost::StepCosts& costs) {
  cost::MachineProfile profile;
  const auto topology = hardware::ReadTopology();
  CHECK(topology.ok());
  profile.machine.SetCpu(topology->cpu);
  profile.machine.isa = (*kernels::ChooseKernels())->name;
  profile.machine.cpus = {0};
  profile.steps = {costs};
  const std::string path = testing::TempDir() + name;
  std::ofstream(path) << cost::ToJson(profile).dump();
  return path;
}

// Rank 0's, of two ranks on a link of kLinkBytesPerSecond; where they are measured, on a small
// model or, without cases, on those that users wait for.
engine::KnownCosts Known(const std::string& path,
                         const std::vector<StepCase>& cases = {{2, 16, 0}, {4, 1, 30}},
                         bool int8_kv = false) {
  const ModelShape small{.hidden = 64,
                         .heads = 4,
                         .layers = 2,
                         .experts = 4,
                         .top_k = 2,
                         .intermediate = 64,
                         .vocab = 96};
  engine::KnownCosts found;
  comm::RunOnThreads(2, [&](comm::Group& group) {
    SlowGroup slow(group, kLinkBytesPerSecond / 2);
    // Each its own core, where there are two.
    hardware::ThreadPool pool(
        {std::min(group.rank(), static_cast<int>(sysconf(_SC_NPROCESSORS_ONLN)) - 1)});
    memory::Ledger ledger;
    const auto known =
        KnownStepCosts({.group = slow,
                        .pool = pool,
                        .kernels = **kernels::ChooseKernels(),
                        .ledger = ledger,
                        .int8_kv = int8_kv},
                       {.profile_path = path,
                        .shapes = cases.empty() ? std::vector<ModelShape>{} : std::vector{small},
                        .cases = cases,
                        .seconds = 0.1});
    CHECK(known.ok(), "{}", known.error().message);
    EXPECT_EQ(ledger.reserved()[memory::Use::kStaging], 0u) << "kept after measuring";
    if (group.rank() == 0) found = *known;
  });
  return found;
}

TEST(KnownCosts, AreTheKeptOnesOfTheSameMachineAndLink) {
  // Within what a machine that others use may make of the link.
  const cost::StepCosts kept = CostsOfLink(2, kLinkBytesPerSecond);
  const engine::KnownCosts known = Known(WriteProfile("same_link.json", kept));
  if (known.ranks == kept) {
    EXPECT_THAT(known.source, HasSubstr("2026-01-02"));
  } else {
    EXPECT_THAT(known.source, HasSubstr("of a link of 400 MB/s"));  // the machine was busy
  }
}

TEST(KnownCosts, AreMeasuredWhereTheLinkIsAnother) {
  const cost::StepCosts kept = CostsOfLink(2, 1e12);
  const engine::KnownCosts known = Known(WriteProfile("other_link.json", kept));
  EXPECT_THAT(known.source, HasSubstr("the kept costs are of a link of 1000000 MB/s"));
  EXPECT_EQ(known.ranks.num_ranks, 2);
  EXPECT_TRUE(known.ranks.tasks[static_cast<size_t>(schedule::TaskKind::kExperts)].has_value());
}

// Plans of a model whose tasks nobody measured are not looked at.
TEST(KnownCosts, AQuickMeasurementHasAllTasksOfRanksThatDivideAnyModel) {
  using enum schedule::TaskKind;
  const engine::KnownCosts known = Known(testing::TempDir() + "not_there.json", /*cases=*/{});
  for (const schedule::TaskKind kind :
       {kEmbed, kHead, kJoinLogits, kNormalize, kProject, kAttention, kAddPartials, kDense, kRoute,
        kShared, kExperts, kReduce, kFinish}) {
    EXPECT_TRUE(known.ranks.tasks[static_cast<size_t>(kind)].has_value()) << static_cast<int>(kind);
  }
  std::remove((testing::TempDir() + "not_there.json").c_str());
}

TEST(KnownCosts, AreMeasuredWhereTheKeptOnesKnowOfNoBytes) {
  cost::StepCosts kept = CostsOfLink(2, 1e12);
  kept.exchange.seconds.value = {1e-5, 1e-5};
  EXPECT_THAT(Known(WriteProfile("no_bytes.json", kept)).source,
              HasSubstr("exchanges take no longer the more bytes they move"));
}

TEST(KnownCosts, AreMeasuredWhereNothingIsKept) {
  const std::string nothing = testing::TempDir() + "no_such.json";
  std::remove(nothing.c_str());  // of an earlier run, which has kept it
  EXPECT_THAT(Known(nothing).source, HasSubstr("since no profile is kept"));
  EXPECT_THAT(Known(WriteProfile("other_ranks.json", CostsOfLink(3, 1e9))).source,
              HasSubstr("no costs of 2 ranks with 1 thread each and weights in int8"));
}

TEST(KnownCosts, WhatIsKeptAndCannotBeReadIsLeftAsItIs) {
  const std::string path = testing::TempDir() + "damaged.json";
  std::ofstream(path) << "{\"version\": 7";
  EXPECT_THAT(Known(path).source, HasSubstr("damaged.json is not a profile of a machine"));
  std::stringstream kept;
  kept << std::ifstream(path).rdbuf();
  EXPECT_EQ(kept.str(), "{\"version\": 7");
}

cost::MachineProfile Read(const std::string& path) {
  const auto profile = LoadMachineProfile(path);
  CHECK(profile.ok(), "{}", profile.error().message);
  return *profile;
}

TEST(KnownCosts, AreKeptBesideWhatTheProfileHas) {
  const std::string path = WriteProfile("to_be_completed.json", CostsOfLink(3, 1e9));
  const engine::KnownCosts measured = Known(path);
  const cost::MachineProfile kept = Read(path);
  EXPECT_NE(kept.CostsOf(3, 1, "int8"), nullptr);
  const cost::StepCosts* costs = kept.CostsOf(2, 1, "int8");
  ASSERT_NE(costs, nullptr);
  EXPECT_EQ(*costs, measured.ranks);
  EXPECT_EQ(costs->version, kVersion);
  EXPECT_EQ(kept.machine.cpus, std::vector<int>({0})) << "what was known of the machine is lost";
}

TEST(KnownCosts, AreMeasuredAnewByAnotherVersion) {
  cost::StepCosts old = CostsOfLink(2, kLinkBytesPerSecond);
  old.version = "0.0.9";
  const std::string path = WriteProfile("old_version.json", old);
  const engine::KnownCosts known = Known(path);
  // A busy machine may make another link of it, which is looked at afterwards.
  EXPECT_THAT(known.source,
              HasSubstr("the kept costs were measured by convene 0.0.9, and this is"));
  EXPECT_EQ(Read(path).CostsOf(2, 1, "int8")->version, kVersion);
}

TEST(KnownCosts, OfAnInt8CacheAreMeasuredWhereTheKeptOnesDoNotTellOfIt) {
  const std::string path = WriteProfile("no_int8.json", CostsOfLink(2, kLinkBytesPerSecond));
  const engine::KnownCosts known = Known(path, {{2, 16, 0}, {4, 1, 30}}, /*int8_kv=*/true);
  EXPECT_THAT(known.source, HasSubstr("none of attention with an int8 KV cache"));
  EXPECT_TRUE(known.ranks.int8_attention.has_value());
  EXPECT_TRUE(Read(path).CostsOf(2, 1, "int8")->int8_attention.has_value());
}

// Virtual machines give CPUs of different generations one name.
TEST(KnownCosts, OfAnotherKindOfCpuWithTheSameNameAreReplaced) {
  const std::string path = WriteProfile("other_cpu.json", CostsOfLink(2, kLinkBytesPerSecond));
  const cost::MachineProfile ours = Read(path);
  cost::MachineProfile other = ours;
  other.steps.push_back(CostsOfLink(3, 1e9));
  other.machine.cpuid = "GenuineExample family 6 model 1 stepping 2";
  std::ofstream(path) << cost::ToJson(other).dump();
  EXPECT_THAT(Known(path).source,
              HasSubstr("was measured on " + ours.machine.cpu_name + " (GenuineExample family 6"));
  EXPECT_EQ(Read(path).machine.cpu(), ours.machine.cpu());
  EXPECT_EQ(Read(path).CostsOf(3, 1, "int8"), nullptr) << "costs of the other CPU are still there";

  // As one of an earlier version is.
  other.machine.SetCpu({.name = ours.machine.cpu_name});
  std::ofstream(path) << cost::ToJson(other).dump();
  EXPECT_THAT(Known(path).source, HasSubstr("does not say on which kind of"));
  EXPECT_EQ(Read(path).machine.cpu(), ours.machine.cpu());
}

TEST(KnownCosts, OfAnotherInstructionSetAreNotMixedWithTheKeptOnes) {
  const std::string path = WriteProfile("other_isa.json", CostsOfLink(2, kLinkBytesPerSecond));
  cost::MachineProfile other = Read(path);
  other.machine.isa = "another";
  std::ofstream(path) << cost::ToJson(other).dump();
  EXPECT_THAT(Known(path).source, HasSubstr("another machine or instruction set"));
  EXPECT_EQ(Read(path).machine.isa, "another");
}

}  // namespace
}  // namespace convene::evaluate
