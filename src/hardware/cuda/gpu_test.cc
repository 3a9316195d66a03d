#include "hardware/gpu.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "hardware/gpu_memory.h"
#include "hardware/huge_buffer.h"
#include "hardware/measure_gpu.h"

namespace convene::hardware {
namespace {

using ::testing::HasSubstr;

TEST(WithCuda, AGpuThatIsNotThereIsUnavailable) {
  EXPECT_TRUE(IsBuiltWithCuda());
  const auto gpus = FindGpus();
  ASSERT_TRUE(gpus) << gpus.error().message;
  for (const int gpu : {-1, static_cast<int>(gpus->size()), 12345}) {
    EXPECT_EQ(FreeGpuBytes(gpu).error().kind, ErrorKind::kUnavailable);
    EXPECT_EQ(GpuMemory::OnDevice(gpu, 1, "the weights").error().kind, ErrorKind::kUnavailable);
    EXPECT_EQ(GpuMemory::Pinned(gpu, 1, "the weights").error().kind, ErrorKind::kUnavailable);
  }
}

class OnAGpu : public ::testing::Test {
 protected:
  void SetUp() override {
    const auto gpus = FindGpus();
    ASSERT_TRUE(gpus) << gpus.error().message;
    if (gpus->empty() || !CanCompute(gpus->front())) GTEST_SKIP() << "no GPU of this build's";
    gpu_ = gpus->front();
  }

  Gpu gpu_;
};

TEST_F(OnAGpu, ItsMemoryIsGivenBack) {
  constexpr size_t kBytes = size_t{256} << 20;
  const auto before = FreeGpuBytes(0);
  ASSERT_TRUE(before) << before.error().message;
  EXPECT_LE(*before, gpu_.memory_bytes);
  {
    auto memory = GpuMemory::OnDevice(0, kBytes, "the weights");
    ASSERT_TRUE(memory) << memory.error().message;
    const GpuMemory moved = *std::move(memory);
    EXPECT_EQ(moved.size_bytes(), kBytes);
    EXPECT_LE(*FreeGpuBytes(0), *before - kBytes);
  }
  EXPECT_GT(*FreeGpuBytes(0), *before - kBytes / 2) << "but for what CUDA keeps";
  const Error refused = GpuMemory::OnDevice(0, gpu_.memory_bytes, "the weights").error();
  EXPECT_EQ(refused.kind, ErrorKind::kResourceExhausted);
  EXPECT_THAT(refused.message, HasSubstr("for the weights"));
  EXPECT_THAT(refused.message, HasSubstr("are free"));
}

TEST_F(OnAGpu, PinnedMemoryIsZeroAndTheHostsOwn) {
  constexpr size_t kBytes = (size_t{200} << 20) + 12345;
  const size_t before = HugeBuffer::total_bytes();
  {
    const auto memory = GpuMemory::Pinned(0, kBytes, "the weights");
    ASSERT_TRUE(memory) << memory.error().message;
    ASSERT_EQ(memory->size_bytes(), kBytes);
    EXPECT_TRUE(
        std::ranges::all_of(memory->bytes(), [](std::byte b) { return b == std::byte{0}; }));
    std::ranges::fill(memory->bytes(), std::byte{1});
  }
  EXPECT_EQ(HugeBuffer::total_bytes(), before);
}

TEST_F(OnAGpu, EveryRateIsMeasured) {
  ThreadPool pool({0});
  const auto profile = MeasureGpu(gpu_, pool, 0.04);
  ASSERT_TRUE(profile) << profile.error().message;
  EXPECT_EQ(profile->name, gpu_.name);
  for (const double rate :
       {profile->to_device_gbps, profile->from_device_gbps, profile->both_ways_gbps,
        profile->pageable_to_device_gbps, profile->pageable_from_device_gbps, profile->staging_gbps,
        profile->read_gbps, profile->copy_gbps, profile->bf16_gflops, profile->f32_gflops,
        profile->launch_us, profile->launch_and_wait_us, profile->small_copy_us,
        profile->small_fetch_us}) {
    EXPECT_GT(rate, 0);
  }
}

}  // namespace
}  // namespace convene::hardware
