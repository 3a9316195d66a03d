#include "hardware/memory_status.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <optional>

#include "hardware/huge_buffer.h"

namespace convene::hardware {
namespace {

using ::testing::HasSubstr;

// A directory with the /proc and /sys files of an invented machine.
class MemoryStatus : public ::testing::Test {
 protected:
  MemoryStatus() {
    std::filesystem::remove_all(root_);
    Write("/proc/meminfo",
          "MemTotal: 4000 kB\nMemFree: 7 kB\nMemAvailable: 3000 kB\n"
          "CommitLimit: 2500 kB\nCommitted_AS: 2000 kB\n");
  }
  ~MemoryStatus() override { std::filesystem::remove_all(root_); }

  void Write(const std::string& path, const std::string& text) {
    std::filesystem::create_directories(std::filesystem::path(root_ + path).parent_path());
    std::ofstream(root_ + path) << text;
  }

  const std::string root_ = ::testing::TempDir() +
                            ::testing::UnitTest::GetInstance()->current_test_info()->name() +
                            std::to_string(getpid());
};

TEST_F(MemoryStatus, TakesWhatTheMachineHasAvailable) {
  const auto available = ReadAvailableMemory(root_);
  ASSERT_TRUE(available);
  EXPECT_EQ(available->bytes, 3000u * 1024);
  EXPECT_THAT(available->limited_by, HasSubstr("this machine"));
}

TEST_F(MemoryStatus, ObeysTheCommitLimitOnlyWhereOvercommittingIsForbidden) {
  Write("/proc/sys/vm/overcommit_memory", "0\n");
  EXPECT_EQ(ReadAvailableMemory(root_)->bytes, 3000u * 1024);
  Write("/proc/sys/vm/overcommit_memory", "2\n");
  EXPECT_EQ(ReadAvailableMemory(root_)->bytes, 500u * 1024);
  EXPECT_THAT(ReadAvailableMemory(root_)->limited_by, HasSubstr("overcommit_memory=2"));
}

TEST_F(MemoryStatus, ObeysTheNodeToWhichMemoryIsBound) {
  Write("/sys/devices/system/node/node1/meminfo",
        "Node 1 MemTotal: 2000 kB\nNode 1 MemFree: 100 kB\nNode 1 Active: 900 kB\n"
        "Node 1 Active(file): 20 kB\nNode 1 Inactive(file): 3 kB\n");
  EXPECT_EQ(ReadAvailableMemory(root_)->bytes, 3000u * 1024) << "nothing is bound";
  const auto bound = ReadAvailableMemory(root_, 1);
  ASSERT_TRUE(bound);
  EXPECT_EQ(bound->bytes, 123u * 1024);
  EXPECT_EQ(bound->limited_by, "the free memory of NUMA node 1, to which memory is bound");
  EXPECT_EQ(ReadAvailableMemory(root_, 2)->bytes, 3000u * 1024) << "it does not tell";
}

TEST_F(MemoryStatus, ObeysTheControlGroup) {
  Write("/proc/self/cgroup", "0::/job\n");
  Write("/proc/self/mountinfo", "35 22 0:27 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n");
  Write("/sys/fs/cgroup/job/memory.max", "1048576\n");
  Write("/sys/fs/cgroup/job/memory.current", "1000000\n");
  Write("/sys/fs/cgroup/job/memory.stat", "inactive_file 900000\n");
  const auto available = ReadAvailableMemory(root_);
  ASSERT_TRUE(available);
  EXPECT_EQ(available->bytes, 948576u);
  EXPECT_THAT(available->limited_by, HasSubstr("1.00 MiB"));
  EXPECT_THAT(available->limited_by, HasSubstr("/sys/fs/cgroup/job"));
}

TEST_F(MemoryStatus, ObeysTheLimitOnTheAddressSpace) {
  rlimit before{};
  ASSERT_EQ(getrlimit(RLIMIT_AS, &before), 0);
  Write("/proc/self/status", "VmSize: 1048000 kB\n");
  rlimit limit = before;
  limit.rlim_cur = rlim_t{1} << 46;
  if (setrlimit(RLIMIT_AS, &limit) != 0) GTEST_SKIP() << "a lower hard limit is set already";
  const auto loose = ReadAvailableMemory(root_);
  Write("/proc/self/status", "VmSize: 68719476000 kB\n");  // 736 kB below the limit
  const auto tight = ReadAvailableMemory(root_);
  setrlimit(RLIMIT_AS, &before);
  EXPECT_EQ(loose->bytes, 3000u * 1024);
  EXPECT_EQ(tight->bytes, 736u * 1024);
  EXPECT_THAT(tight->limited_by, HasSubstr("ulimit -v"));
}

TEST_F(MemoryStatus, WithoutMemAvailableIsAnError) {
  Write("/proc/meminfo", "MemTotal: 4000 kB\n");
  EXPECT_FALSE(ReadAvailableMemory(root_));
  EXPECT_FALSE(ReadAvailableMemory(root_ + "/nothing"));
}

TEST_F(MemoryStatus, ReadsTheKindsOfResidentMemory) {
  Write("/proc/self/status",
        "VmHWM:\t 900 kB\nVmRSS:\t 700 kB\nRssAnon:\t 400 kB\nRssFile:\t 200 kB\n"
        "RssShmem:\t 100 kB\n");
  const ResidentMemory resident = ReadResidentMemory(root_);
  EXPECT_EQ(resident.own_bytes, 500u * 1024);
  EXPECT_EQ(resident.file_bytes, 200u * 1024);
  EXPECT_EQ(resident.peak_bytes, 900u * 1024);
}

TEST(PeakMemory, IsWhatTheProcessHadAlsoBetweenSamples) {
  constexpr size_t kBytes = size_t{64} << 20;
  const ResidentMemory before = ReadResidentMemory();
  if (before.peak_bytes == 0) GTEST_SKIP() << "the kernel keeps no mark (VmHWM)";
  {
    // More than any test before has had.
    const size_t size_bytes = before.peak_bytes + kBytes;
    HugeBuffer buffer = *HugeBuffer::Allocate(size_bytes, "the test");
    std::memset(buffer.data(), 1, size_bytes);
  }
  PeakMemory peak;
  peak.Sample();
  const uint64_t with_buffer = peak.peak_bytes();
  EXPECT_GE(with_buffer, before.peak_bytes + kBytes / 10 * 9);
  peak.Sample();
  EXPECT_GE(peak.peak_bytes(), with_buffer) << "a later, lower sample lowered the peak";
}

TEST(PeakMemory, CountsPagesOfMappedFiles) {
  std::string path = ::testing::TempDir() + "mapped_XXXXXX";
  const int file = mkstemp(path.data());
  ASSERT_GE(file, 0);
  unlink(path.c_str());
  const ResidentMemory before = ReadResidentMemory();
  const uint64_t size_bytes = std::max(before.peak_bytes, before.own_bytes + before.file_bytes);
  ASSERT_EQ(ftruncate(file, static_cast<off_t>(size_bytes)), 0);
  void* mapping = mmap(nullptr, size_bytes, PROT_READ, MAP_SHARED | MAP_POPULATE, file, 0);
  ASSERT_NE(mapping, MAP_FAILED);
  const ResidentMemory with_file = ReadResidentMemory();
  PeakMemory peak;
  peak.Sample();
  munmap(mapping, size_bytes);
  close(file);
  if (with_file.file_bytes < before.file_bytes + size_bytes / 2) {
    GTEST_SKIP() << "the test directory is in memory";
  }
  EXPECT_GE(peak.peak_bytes(), before.own_bytes + before.file_bytes + size_bytes / 10 * 9);
}

}  // namespace
}  // namespace convene::hardware
