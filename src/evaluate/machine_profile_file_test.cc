#include "evaluate/machine_profile_file.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <array>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>
#include <vector>

#include "comm/threads/thread_group.h"

namespace convene::evaluate {
namespace {

using testing::HasSubstr;

const hardware::CpuIdentity kZen4{.name = "AMD EPYC",
                                  .cpuid = "AuthenticAMD family 25 model 17 stepping 1",
                                  .cache_bytes = {32768, 1048576, 33554432}};
const hardware::CpuIdentity kZen5{.name = "AMD EPYC",
                                  .cpuid = "AuthenticAMD family 26 model 2 stepping 1",
                                  .cache_bytes = {49152, 1048576, 33554432}};

cost::MachineProfile Of(const hardware::CpuIdentity& cpu, const char* isa = "avx512_bf16") {
  cost::MachineProfile profile;
  profile.machine.SetCpu(cpu);
  profile.machine.isa = isa;
  profile.machine.cpus = {0, 1};
  return profile;
}

class MachineProfileFile : public testing::Test {
 protected:
  ~MachineProfileFile() override { std::filesystem::remove(path_); }

  void Keep(const cost::MachineProfile& profile) {
    ASSERT_TRUE(hardware::SaveProfileJson(cost::ToJson(profile), path_));
  }

  std::string path_ = testing::TempDir() + fmt::format("machine_profile_{}.json", getpid());
};

TEST_F(MachineProfileFile, TheSameNameAndInstructionsAreNotTheSameMachine) {
  EXPECT_TRUE(IsOfSameMachine(Of(kZen4), Of(kZen4)));
  EXPECT_FALSE(IsOfSameMachine(Of(kZen4), Of(kZen5)));
  EXPECT_FALSE(IsOfSameMachine(Of(kZen4, "avx2"), Of(kZen4)));
  EXPECT_FALSE(IsOfSameMachine(Of({}), Of({}))) << "nobody knows what they are";
  EXPECT_THAT(WhyAnotherMachine(Of(kZen4).machine, kZen5, "avx512_bf16"),
              HasSubstr("family 25 model 17"));
  EXPECT_THAT(WhyAnotherMachine(Of(kZen4, "avx2").machine, kZen4, "amx"),
              HasSubstr("with the instruction set avx2, and this is amx"));
}

TEST_F(MachineProfileFile, OfAnotherKindOfCpuNothingIsTakenOver) {
  cost::MachineProfile before = Of(kZen4);
  before.steps.push_back({.num_ranks = 2, .num_threads = 1, .weights = "bf16"});
  Keep(before);
  EXPECT_EQ(WithKept(Of(kZen4), path_).steps.size(), 1u);
  EXPECT_TRUE(WithKept(Of(kZen5), path_).steps.empty());
  // One of an earlier version may be of any AMD EPYC.
  before.machine.SetCpu({.name = kZen4.name});
  Keep(before);
  EXPECT_TRUE(WithKept(Of(kZen4), path_).steps.empty());
}

// Of two ranks with a CPU each; empty: as is usual.
std::array<std::vector<int>, 2> WaysOfTwoRanks(const cost::MachineProfile& measured,
                                               const std::string& path) {
  std::array<std::vector<int>, 2> ways;
  comm::RunOnThreads(2, [&](comm::Group& group) {
    const auto choice =
        StreamingWhileMeasuring(group, group.rank() == 0 ? measured : cost::MachineProfile(), path,
                                {.cpu = kZen4, .isa = "avx512_bf16", .cpus = {group.rank()}});
    if (choice) ways[static_cast<size_t>(group.rank())] = choice->numbers();
  });
  return ways;
}

TEST_F(MachineProfileFile, PanelsAreReadWhileMeasuringAsTheFileWillSay) {
  const auto numbers = [](size_t way) {
    return kernels::StreamingChoice(kernels::kStreamingWays[way]).numbers();
  };
  cost::MachineProfile measured = Of(kZen4);
  EXPECT_TRUE(WaysOfTwoRanks(measured, path_)[0].empty());
  measured.machine.panel_streaming = numbers(1);
  EXPECT_EQ(WaysOfTwoRanks(measured, path_), (std::array{numbers(1), numbers(1)}));
  // Rank 0 measured on its own CPU alone, so nothing is known of that of rank 1.
  measured.machine.cpus = {0};
  EXPECT_EQ(WaysOfTwoRanks(measured, path_), (std::array{numbers(1), std::vector<int>()}));
  // What one rank found that had the machine to itself stays in the file, and models go by that.
  cost::MachineProfile alone = Of(kZen4);
  alone.machine.panel_streaming = numbers(2);
  Keep(alone);
  EXPECT_EQ(WaysOfTwoRanks(measured, path_), (std::array{numbers(2), numbers(2)}));
}

}  // namespace
}  // namespace convene::evaluate
