#include "hardware/profile.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stdlib.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <tuple>
#include <type_traits>
#include <utility>

namespace convene::hardware {
namespace {

using ::testing::HasSubstr;
using ::testing::MatchesRegex;

Profile Example() {
  return {.cpu_name = "Example 9000",
          .cpuid = "GenuineExample family 6 model 143 stepping 8",
          .cache_bytes = {49152, uint64_t{2} << 20, uint64_t{1} << 33},
          .cpus = {0, 2, 4},
          .isa = "avx512_bf16",
          .f32_gflops = 230.25,
          .bf16_gflops = 466,
          .int8_gops = 910,
          .read_gbps = 64.5,
          .disk_gbps = 1.5,
          .disk_gbps_beside = 1.25,
          .disk_core_seconds_per_gb = 0.5,
          .disk_directory = "/tmp",
          .disk_direct = true,
          .last_level_cache_bytes = uint64_t{1} << 33,
          .num_numa_nodes = 2,
          .num_interleaved_nodes = 3,
          .dense_from_rows = 48,
          .expand_from_tokens = 8,
          .panel_streaming = {0, 1, 2},
          .huge_page_share = 0.99,
          .date = "2025-01-31T12:00:00Z"};
}

GpuProfile ExampleOfGpu() {
  return {.index = 1,
          .name = "GPU of an example",
          .memory_bytes = uint64_t{80} << 30,
          .num_multiprocessors = 132,
          .l2_bytes = uint64_t{50} << 20,
          .pci_link = "32.0 GT/s PCIe x16",
          .to_device_gbps = 55.5,
          .from_device_gbps = 54.5,
          .both_ways_gbps = 88.5,
          .pageable_to_device_gbps = 12.5,
          .pageable_from_device_gbps = 11.5,
          .staging_gbps = 20.5,
          .read_gbps = 3000.5,
          .copy_gbps = 2900.5,
          .bf16_gflops = 700000.5,
          .f32_gflops = 60000.5,
          .launch_us = 2.25,
          .launch_and_wait_us = 7.25,
          .small_copy_us = 8.25,
          .small_fetch_us = 9.25};
}

// All members. A new one is an error of the compiler here: it belongs into the example, too.
auto MembersOf(const Profile& profile) {
  const auto& [cpu_name, cpuid, cache_bytes, cpus, isa, f32, bf16, int8, read, disk, disk_beside,
               disk_core_seconds, disk_directory, disk_direct, last_level_cache, numa, interleaved,
               dense_from, expand_from, streaming, huge_share, date, gpus] = profile;
  return std::tie(cpu_name, cpuid, cache_bytes, cpus, isa, f32, bf16, int8, read, disk, disk_beside,
                  disk_core_seconds, disk_directory, disk_direct, last_level_cache, numa,
                  interleaved, dense_from, expand_from, streaming, huge_share, date, gpus);
}
auto MembersOf(const GpuProfile& gpu) {
  const auto& [index, name, memory, multiprocessors, l2, pci_link, to, from, both, pageable_to,
               pageable_from, staging, read, copy, bf16, f32, launch, launch_and_wait, small_copy,
               small_fetch] = gpu;
  return std::tie(index, name, memory, multiprocessors, l2, pci_link, to, from, both, pageable_to,
                  pageable_from, staging, read, copy, bf16, f32, launch, launch_and_wait,
                  small_copy, small_fetch);
}

// One that is as in a new profile could be lost without a sign.
template <typename Tuple>
void ExpectAllDiffer(const Tuple& example, const Tuple& unset) {
  const auto expect = [&]<size_t kIndex>(std::integral_constant<size_t, kIndex>) {
    EXPECT_NE(std::get<kIndex>(example), std::get<kIndex>(unset)) << "member " << kIndex;
  };
  [&]<size_t... kIndex>(std::index_sequence<kIndex...>) {
    (expect(std::integral_constant<size_t, kIndex>()), ...);
  }(std::make_index_sequence<std::tuple_size_v<Tuple>>());
}

class ProfileFile : public ::testing::Test {
 protected:
  ProfileFile() { EXPECT_NE(mkdtemp(directory_.data()), nullptr); }
  ~ProfileFile() override { std::filesystem::remove_all(directory_); }

  std::string directory_ = ::testing::TempDir() + "profile_XXXXXX";
  std::string path() const { return directory_ + "/a/b/profile.json"; }

  void Write(const std::string& text) {
    std::filesystem::create_directories(directory_ + "/a/b");
    std::ofstream(path()) << text;
  }
};

TEST_F(ProfileFile, ComesBackAsItWasSaved) {
  Profile example = Example();
  example.gpus = {ExampleOfGpu()};
  const Profile unset;
  const GpuProfile unset_gpu;
  ExpectAllDiffer(MembersOf(example), MembersOf(unset));
  ExpectAllDiffer(MembersOf(example.gpus.front()), MembersOf(unset_gpu));
  ASSERT_TRUE(SaveProfileJson(ToJson(example), path()));
  const auto loaded = LoadProfile(path());
  ASSERT_TRUE(loaded) << loaded.error().message;
  EXPECT_EQ(*loaded, example);
}

TEST_F(ProfileFile, GpusComeBackAndNeedNotBeThere) {
  EXPECT_FALSE(ToJson(Example()).contains("gpus")) << "as it was before there were any";
  Profile profile = Example();
  profile.gpus = {ExampleOfGpu(), {.name = "another"}};
  ASSERT_TRUE(SaveProfileJson(ToJson(profile), path()));
  const auto loaded = LoadProfile(path());
  ASSERT_TRUE(loaded) << loaded.error().message;
  EXPECT_EQ(*loaded, profile);
}

// The rates of one that an earlier version measured are still there for whoever names it.
TEST(Profile, OneOfAnEarlierVersionDoesNotSayOfWhichKindOfCpuItIs) {
  nlohmann::json json = ToJson(Example());
  json.erase("cpuid");
  json.erase("cache_bytes");
  const auto profile = ProfileFromJson(json);
  ASSERT_TRUE(profile) << profile.error().message;
  EXPECT_EQ(profile->cpu(), CpuIdentity{.name = "Example 9000"});
  EXPECT_EQ(profile->read_gbps, Example().read_gbps);
}

TEST(Profile, GpusThatDoNotFitAreErrorsThatSayWhich) {
  Profile profile = Example();
  profile.gpus.resize(2);
  nlohmann::json json = ToJson(profile);
  json["gpus"][1]["read_gbps"] = -1;
  EXPECT_THAT(ProfileFromJson(json).error().message, HasSubstr("GPU 1: \"read_gbps\" must be"));
  json["gpus"][1].erase("read_gbps");
  EXPECT_THAT(ProfileFromJson(json).error().message, HasSubstr("\"read_gbps\" is missing"));
  for (const nlohmann::json& gpus :
       {nlohmann::json(3), nlohmann::json({3}), nlohmann::json::object(),
        nlohmann::json(std::vector<nlohmann::json>(65, ToJson(profile)["gpus"][0]))}) {
    json["gpus"] = gpus;
    EXPECT_THAT(ProfileFromJson(json).error().message, HasSubstr("\"gpus\" must be a list"));
  }
}

TEST_F(ProfileFile, SavingReplacesTheFileAndLeavesNoOther) {
  Write("an older one");
  Profile profile = Example();
  profile.cpu_name = "name of no \xff\xfe encoding";
  ASSERT_TRUE(SaveProfileJson(ToJson(profile), path()));
  EXPECT_TRUE(LoadProfile(path()));
  int files = 0;
  for (const auto& entry : std::filesystem::directory_iterator(directory_ + "/a/b")) {
    EXPECT_EQ(entry.path().string(), path());
    ++files;
  }
  EXPECT_EQ(files, 1);
}

TEST_F(ProfileFile, SavingWhereNothingCanBeWrittenIsAnErrorThatNamesTheFile) {
  Write("x");
  for (const std::string& bad :
       {path() + "/under/a/file.json", std::string("/proc/profile.json")}) {
    const Status status = SaveProfileJson(ToJson(Example()), bad);
    ASSERT_FALSE(status);
    EXPECT_THAT(status.error().message, HasSubstr(bad));
  }
}

TEST_F(ProfileFile, MissingOrCorruptIsAnErrorWithTheFileAndTheRemedy) {
  const std::string whole = ToJson(Example()).dump();
  std::vector<std::string> broken = {"",
                                     "null",
                                     "[]",
                                     "{}",
                                     "{",
                                     "\xff",
                                     std::string(100000, '['),
                                     whole.substr(0, whole.size() / 2)};
  const auto with = [](const char* key, nlohmann::json value) {
    nlohmann::json json = ToJson(Example());
    json[key] = std::move(value);
    return json.dump();
  };
  broken.push_back(with("version", 1));
  broken.push_back(with("version", "4"));
  broken.push_back(with("panel_streaming", {0, -1}));
  broken.push_back(with("panel_streaming", 3));
  broken.push_back(with("cpuid", 6));
  broken.push_back(with("cache_bytes", {32768, -1}));
  broken.push_back(with("cache_bytes", 32768));
  broken.push_back(with("cache_bytes", std::vector<int>(17, 32768)));
  broken.push_back(with("cpus", {0, -1}));
  broken.push_back(with("cpus", {0, 4294967296}));
  broken.push_back(with("cpus", "0"));
  broken.push_back(with("isa", nullptr));
  broken.push_back(with("read_gbps", -3.5));
  broken.push_back(with("read_gbps", "fast"));
  broken.push_back(with("disk_direct", 1));
  broken.push_back(with("num_numa_nodes", 1.5));
  broken.push_back(with("last_level_cache_bytes", -1));
  broken.push_back(with("read_gbps", 1e300));
  broken.push_back(with("huge_page_share", 1.5));
  broken.push_back(with("dense_from_rows", 2000000000));
  for (const std::string& text : broken) {
    Write(text);
    const auto loaded = LoadProfile(path());
    ASSERT_FALSE(loaded) << text.substr(0, 200);
    EXPECT_THAT(loaded.error().message, HasSubstr(path()));
    EXPECT_THAT(loaded.error().message, HasSubstr("convene measure"));
  }
  std::filesystem::remove(path());
  const auto missing = LoadProfile(path());
  ASSERT_FALSE(missing);
  EXPECT_THAT(missing.error().message, HasSubstr(path()));
}

TEST_F(ProfileFile, EveryMemberIsNeededButThoseThatOlderOnesHaveNot) {
  const nlohmann::json whole = ToJson(Example());
  for (const auto& [key, value] : whole.items()) {
    nlohmann::json json = whole;
    json.erase(key);
    if (key == "disk_gbps_beside" || key == "disk_core_seconds_per_gb" || key == "cpuid" ||
        key == "cache_bytes") {
      EXPECT_TRUE(ProfileFromJson(json)) << key;
      continue;
    }
    const auto profile = ProfileFromJson(json);
    ASSERT_FALSE(profile) << key;
    EXPECT_THAT(profile.error().message, HasSubstr(key));
  }
}

TEST(Profile, DateIsUtcInIsoForm) {
  EXPECT_THAT(CurrentDate(), MatchesRegex("20[0-9][0-9]-[01][0-9]-[0-3][0-9]T[0-9:]{8}Z"));
}

}  // namespace
}  // namespace convene::hardware
