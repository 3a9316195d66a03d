#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sched.h>
#include <sys/mount.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <random>
#include <string>
#include <vector>

#include "hardware/affinity.h"
#include "hardware/measure_disk.h"
#include "hardware/measure_memory.h"
#include "hardware/measure_rate.h"
#include "hardware/memory_status.h"

namespace convene::hardware {
namespace {

using ::testing::HasSubstr;

TEST(MeasureRate, MakesAtLeastThreePassesAndKeepsTheBest) {
  int passes = 0;
  const Rate rate = MeasureRate(0, [&] {
    ++passes;
    return passes == 2 ? 1e6 : 1.0;
  });
  EXPECT_EQ(passes, 3);
  EXPECT_EQ(rate.num_passes, 3);
  EXPECT_GT(rate.best, rate.median);
}

TEST(MeasureRate, EndsAtAPassThatDidNothing) {
  int passes = 0;
  const Rate rate = MeasureRate(1e9, [&] { return ++passes <= 2 ? 1.0 : 0.0; });
  EXPECT_EQ(passes, 3);
  EXPECT_EQ(rate.num_passes, 2);
  EXPECT_EQ(MeasureRate(1e9, [] { return 0.0; }).num_passes, 0);
}

TEST(MeasureMemory, ReadsBuffersOfAnySize) {
  ThreadPool pool(*CurrentAffinity());
  const HugeBuffer buffer = *HugeBuffer::Allocate((size_t{9} << 20) + 12345, "the test");
  for (const size_t size_bytes :
       {size_t{128}, size_t{4096}, size_t{5} << 20, buffer.size_bytes()}) {
    const Rate rate = MeasureReadBandwidth(pool, buffer.bytes().first(size_bytes), 0);
    EXPECT_EQ(rate.num_passes, 3);
    EXPECT_GT(rate.best, 0);
    EXPECT_GE(rate.best, rate.median);
  }
  EXPECT_EQ(MeasureReadBandwidth(pool, {}, 0).num_passes, 0);
}

TEST(MeasureMemory, SizeFollowsThreadsAndCachesWithinWhatIsAvailable) {
  constexpr uint64_t kGiB = uint64_t{1} << 30;
  EXPECT_EQ(BytesForBandwidth(2, 32 << 20, 64 * kGiB), kGiB);
  EXPECT_EQ(BytesForBandwidth(2, kGiB, 64 * kGiB), 8 * kGiB);
  EXPECT_EQ(BytesForBandwidth(96, 0, 64 * kGiB), 3 * kGiB);
  EXPECT_EQ(BytesForBandwidth(2, 0, kGiB), kGiB / 4);
  EXPECT_EQ(BytesForBandwidth(2, 0, 1000), 0u);
}

TEST(MeasureMemory, BufferIsFarLargerThanTheCacheAndWritten) {
  constexpr uint64_t kCacheBytes = 8 << 20;
  const auto available = ReadAvailableMemory();
  ASSERT_TRUE(available) << available.error().message;
  if (available->bytes < 40 * kCacheBytes) GTEST_SKIP() << "too little memory";
  ThreadPool pool(*CurrentAffinity());
  const auto buffer = AllocateForBandwidth(pool, kCacheBytes);
  ASSERT_TRUE(buffer) << buffer.error().message;
  EXPECT_GE(buffer->size_bytes(), 8 * kCacheBytes);
  constexpr size_t kStep = 4096;
  for (size_t end = kStep; end <= buffer->size_bytes(); end += kStep) {
    ASSERT_NE(buffer->bytes()[end - 1], std::byte{0}) << end;
  }
}

class MeasureDisk : public ::testing::Test {
 protected:
  MeasureDisk() { EXPECT_NE(mkdtemp(directory_.data()), nullptr); }
  ~MeasureDisk() override { std::filesystem::remove_all(directory_); }

  std::string directory_ = ::testing::TempDir() + "disk_XXXXXX";
};

TEST_F(MeasureDisk, ReadsWhatItWroteAndLeavesNothingBehind) {
  const auto rate = MeasureDiskRead(directory_, 20 << 20, 0.01);
  ASSERT_TRUE(rate) << rate.error().message;
  EXPECT_GT(rate->read.best, 0);
  EXPECT_GE(rate->read.num_passes, 3);
  EXPECT_GE(rate->file_bytes, 16u << 20);
  EXPECT_LE(rate->file_bytes, 20u << 20);
  EXPECT_TRUE(std::filesystem::is_empty(directory_));
}

TEST_F(MeasureDisk, TellsWhatItTakesFromThreadsThatCompute) {
  ThreadPool pool({0});
  const auto rate = MeasureDiskRead(directory_, 20 << 20, 0.05, &pool);
  ASSERT_TRUE(rate) << rate.error().message;
  EXPECT_GT(rate->beside_bytes_per_second, 0);
  EXPECT_GE(rate->core_seconds_per_byte, 0);
  EXPECT_LE(rate->core_seconds_per_byte * rate->beside_bytes_per_second, pool.size());
  EXPECT_TRUE(std::filesystem::is_empty(directory_));
}

TEST_F(MeasureDisk, TakesNoMoreMemoryThanItIsGiven) {
  const auto measure = [&] {
    const uint64_t before = ReadResidentMemory().peak_bytes;
    const auto rate = MeasureDiskRead(directory_, 20 << 20, 0.01, nullptr, uint64_t{9} << 20);
    const uint64_t more = ReadResidentMemory().peak_bytes - before;
    std::exit(rate && more < (uint64_t{32} << 20) ? 0 : 1);
  };
  if (ReadResidentMemory().peak_bytes == 0) GTEST_SKIP() << "the peak of memory is not known here";
  // In a process of its own, whose peak begins with what it has.
  EXPECT_EXIT(measure(), testing::ExitedWithCode(0), "");
}

TEST_F(MeasureDisk, ALargeFileThatIsThereIsRead) {
  constexpr uint64_t kBytes = (uint64_t{256} << 20) + 4096;
  std::ofstream(directory_ + "/small") << "not this one";
  std::ofstream(directory_ + "/holes") << "";
  std::filesystem::resize_file(directory_ + "/holes", 2 * kBytes);  // takes no room
  const auto written = MeasureDiskRead(directory_, 20 << 20, 0.01);
  ASSERT_TRUE(written) << written.error().message;
  EXPECT_LE(written->file_bytes, 20u << 20) << "a file with holes was read";
  {
    // Of bytes that a file system cannot compress to fewer blocks.
    std::string block(1 << 20, '\0');
    std::mt19937 random(1);
    for (char& byte : block) byte = static_cast<char>(random());
    std::ofstream file(directory_ + "/weights", std::ios::binary);
    for (uint64_t left = kBytes; left > 0; left -= std::min<uint64_t>(left, block.size())) {
      file.write(block.data(),
                 static_cast<std::streamsize>(std::min<uint64_t>(left, block.size())));
    }
  }
  const auto rate = MeasureDiskRead(directory_, 20 << 20, 0.01);
  ASSERT_TRUE(rate) << rate.error().message;
  EXPECT_EQ(rate->file_bytes, kBytes);
  EXPECT_TRUE(MeasureDiskRequests(directory_, 0.01));
  EXPECT_EQ(std::filesystem::file_size(directory_ + "/weights"), kBytes);
}

TEST_F(MeasureDisk, RequestsOfAllSizesAreReadAtAllDepths) {
  const auto found = MeasureDiskRequests(directory_, 0.01);
  ASSERT_TRUE(found) << found.error().message;
  EXPECT_EQ(found->points.size(), 30u);
  for (const DiskPoint& point : found->points) EXPECT_GT(point.seconds, 0);
  EXPECT_TRUE(std::filesystem::is_empty(directory_));
  EXPECT_FALSE(MeasureDiskRequests("/nonexistent/place", 0.01));
}

TEST_F(MeasureDisk, DirectoryThatCannotBeWrittenIsAnErrorThatNamesIt) {
  for (const char* directory : {"/nonexistent/place", "/proc"}) {
    const auto rate = MeasureDiskRead(directory, 20 << 20, 0.01);
    ASSERT_FALSE(rate);
    EXPECT_THAT(rate.error().message, HasSubstr(directory));
  }
}

// Makes this process root in a user namespace of its own, where it may mount.
bool BecomeNamespaceRoot() {
  const std::string uid = std::to_string(getuid()), gid = std::to_string(getgid());
  if (unshare(CLONE_NEWUSER | CLONE_NEWNS) != 0) return false;
  std::ofstream("/proc/self/setgroups") << "deny";
  std::ofstream("/proc/self/uid_map") << "0 " + uid + " 1";
  std::ofstream("/proc/self/gid_map") << "0 " + gid + " 1";
  return getuid() == 0;
}

constexpr int kMeasured = 0;
constexpr int kRefused = 1;
constexpr int kMayNotMount = 77;

int MeasureSmallDisk(const std::string& directory, const char* options) {
  if (!BecomeNamespaceRoot()) return kMayNotMount;
  if (mount("none", directory.c_str(), "tmpfs", 0, options) != 0) return kMayNotMount;
  const auto rate = MeasureDiskRead(directory, 64 << 20, 0.01);
  umount2(directory.c_str(), MNT_DETACH);
  if (!rate) {
    std::fprintf(stderr, "%s", rate.error().message.c_str());
    return kRefused;
  }
  std::fprintf(stderr, "measured with %d MiB", static_cast<int>(rate->file_bytes >> 20));
  return kMeasured;
}

// In a process of its own, where it may mount: a file system in memory with `options`.
[[noreturn]] void MeasureSmallDiskAndExit(const std::string& directory, const char* options) {
  const int outcome = MeasureSmallDisk(directory, options);
  rmdir(directory.c_str());
  _exit(outcome);
}

bool MeasuredOrMayNotMount(int status) {
  return WIFEXITED(status) &&
         (WEXITSTATUS(status) == kMeasured || WEXITSTATUS(status) == kMayNotMount);
}
bool RefusedOrMayNotMount(int status) {
  return WIFEXITED(status) &&
         (WEXITSTATUS(status) == kRefused || WEXITSTATUS(status) == kMayNotMount);
}

using MeasureDiskDeathTest = MeasureDisk;

TEST_F(MeasureDiskDeathTest, SmallDiskGetsASmallFileAndAFullOneAClearError) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(MeasureSmallDiskAndExit(directory_, "size=40m"), MeasuredOrMayNotMount,
              "measured with 1[0-9] MiB|measured with 20 MiB|^$");
  EXPECT_EXIT(MeasureSmallDiskAndExit(directory_, "size=8m"), RefusedOrMayNotMount,
              "8.00 MiB free.*needs 32.0 MiB|^$");
}

}  // namespace
}  // namespace convene::hardware
