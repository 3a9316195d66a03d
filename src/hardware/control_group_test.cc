#include "hardware/control_group.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "hardware/kernel_files.h"

namespace convene::hardware {
namespace {

// A directory with the /proc and /sys files of an invented machine.
class ControlGroup : public ::testing::Test {
 protected:
  ControlGroup() { std::filesystem::remove_all(root_); }
  ~ControlGroup() override { std::filesystem::remove_all(root_); }

  void Write(const std::string& path, const std::string& text) {
    std::filesystem::create_directories(std::filesystem::path(root_ + path).parent_path());
    std::ofstream(root_ + path) << text;
  }

  const std::string root_ = ::testing::TempDir() +
                            ::testing::UnitTest::GetInstance()->current_test_info()->name() +
                            std::to_string(getpid());
};

constexpr char kMountsV2[] =
    "22 1 254:0 / / rw - ext4 /dev/vda rw\n"
    "35 22 0:27 / /sys/fs/cgroup rw,nosuid shared:4 master:1 - cgroup2 cgroup2 rw\n";
constexpr char kMountsV1[] =
    "32 31 0:29 / /sys/fs/cgroup/cpu,cpuacct rw - cgroup cgroup rw,cpu,cpuacct\n"
    "33 31 0:30 / /sys/fs/cgroup/cpuset rw - cgroup cgroup rw,cpuset\n"
    "35 31 0:32 /docker/7 /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n";

TEST_F(ControlGroup, WithoutFilesThereIsNoLimit) {
  EXPECT_FALSE(ControlGroupCpuQuota(root_));
  EXPECT_FALSE(TightestControlGroupMemory(root_));
}

TEST_F(ControlGroup, Version2TakesTheTightestAncestor) {
  Write("/proc/self/cgroup", "0::/a/b\n");
  Write("/proc/self/mountinfo", kMountsV2);
  Write("/sys/fs/cgroup/a/b/cpu.max", "max 100000\n");
  Write("/sys/fs/cgroup/a/cpu.max", "150000 100000\n");
  Write("/sys/fs/cgroup/a/b/memory.max", "max\n");
  Write("/sys/fs/cgroup/a/b/memory.current", "5000\n");
  Write("/sys/fs/cgroup/a/memory.max", "1000000\n");
  Write("/sys/fs/cgroup/a/memory.high", "max\n");
  Write("/sys/fs/cgroup/a/memory.current", "700000\n");
  Write("/sys/fs/cgroup/a/memory.stat",
        "anon 100\nfile 450000\ninactive_file_x 7\ninactive_file 300000\nactive_file 90000\n"
        "slab_reclaimable 10000\n");
  EXPECT_DOUBLE_EQ(*ControlGroupCpuQuota(root_), 1.5);
  const auto memory = TightestControlGroupMemory(root_);
  ASSERT_TRUE(memory);
  EXPECT_EQ(memory->limit_bytes, 1000000u);
  EXPECT_EQ(memory->used_bytes, 300000u);
  EXPECT_EQ(memory->available_bytes(), 700000u);
  EXPECT_EQ(memory->directory, root_ + "/sys/fs/cgroup/a");
}

TEST_F(ControlGroup, Version2CountsTheHighMarkAsALimit) {
  Write("/proc/self/cgroup", "0::/\n");
  Write("/proc/self/mountinfo", kMountsV2);
  Write("/sys/fs/cgroup/memory.max", "2000\n");
  Write("/sys/fs/cgroup/memory.high", "1000\n");
  Write("/sys/fs/cgroup/memory.current", "1500\n");
  const auto memory = TightestControlGroupMemory(root_);
  ASSERT_TRUE(memory);
  EXPECT_EQ(memory->limit_bytes, 1000u);
  EXPECT_EQ(memory->available_bytes(), 0u);
}

TEST_F(ControlGroup, Version1IsFoundByControllerAndBelowTheMountedTop) {
  Write("/proc/self/cgroup",
        "8:cpuset:/elsewhere\n5:cpu,cpuacct:/docker/7/job\n4:memory:/docker/7/job\n");
  Write("/proc/self/mountinfo", kMountsV1);
  Write("/sys/fs/cgroup/cpu,cpuacct/docker/7/job/cpu.cfs_quota_us", "-1\n");
  Write("/sys/fs/cgroup/cpu,cpuacct/docker/7/job/cpu.cfs_period_us", "100000\n");
  Write("/sys/fs/cgroup/cpu,cpuacct/docker/cpu.cfs_quota_us", "300000\n");
  Write("/sys/fs/cgroup/cpu,cpuacct/docker/cpu.cfs_period_us", "100000\n");
  Write("/sys/fs/cgroup/memory/job/memory.limit_in_bytes", "9223372036854771712\n");
  Write("/sys/fs/cgroup/memory/memory.limit_in_bytes", "5000\n");
  Write("/sys/fs/cgroup/memory/memory.usage_in_bytes", "4000\n");
  Write("/sys/fs/cgroup/memory/memory.stat",
        "inactive_file 1\ntotal_inactive_file 1000\ntotal_active_file 500\n");
  EXPECT_DOUBLE_EQ(*ControlGroupCpuQuota(root_), 3.0);
  const auto memory = TightestControlGroupMemory(root_);
  ASSERT_TRUE(memory);
  EXPECT_EQ(memory->used_bytes, 2500u);
  EXPECT_EQ(memory->available_bytes(), 2500u);
}

TEST_F(ControlGroup, NonsenseInTheFilesIsNoLimit) {
  Write("/proc/self/cgroup", "garbage\n:\n::\n0::/../../etc\n");
  Write("/proc/self/mountinfo", std::string("x\n\n- cgroup2\n") + kMountsV2);
  Write("/sys/fs/cgroup/cpu.max", "many few\n");
  Write("/sys/fs/cgroup/memory.max", "lots\n");
  EXPECT_FALSE(ControlGroupCpuQuota(root_));
  EXPECT_FALSE(TightestControlGroupMemory(root_));
}

TEST(KernelFiles, NumberAfterWantsTheWholeKeyAtTheStartOfALine) {
  const char text[] = "MemFree2: 1 kB\n MemFree: 2 kB\nMemFree:\t  33 kB\nnone x\n";
  EXPECT_EQ(NumberAfter(text, "MemFree"), 33u);
  EXPECT_EQ(NumberAfter(text, "Mem"), std::nullopt);
  EXPECT_EQ(NumberAfter(text, "none"), std::nullopt);
  EXPECT_EQ(NumberAfter("", "x"), std::nullopt);
  EXPECT_EQ(ReadKernelFile("/nonexistent/file"), std::nullopt);
}

}  // namespace
}  // namespace convene::hardware
