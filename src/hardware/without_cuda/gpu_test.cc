#include "hardware/gpu.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "hardware/gpu_memory.h"

namespace convene::hardware {
namespace {

using ::testing::HasSubstr;

TEST(WithoutCuda, FindsNoGpuAndSaysWhyWhereOneIsAskedFor) {
  EXPECT_FALSE(IsBuiltWithCuda());
  const auto gpus = FindGpus();
  ASSERT_TRUE(gpus);
  EXPECT_TRUE(gpus->empty());
  const Error asked = FreeGpuBytes(3).error();
  EXPECT_EQ(asked.kind, ErrorKind::kUnavailable);
  EXPECT_THAT(asked.message, HasSubstr("GPU 3 was asked for, but this build of convene has no "
                                       "CUDA"));
  EXPECT_EQ(GpuMemory::OnDevice(3, 1, "the weights").error().message, asked.message);
  EXPECT_EQ(GpuMemory::Pinned(3, 1, "the weights").error().message, asked.message);
  Gpu gpu;
  gpu.index = 3;
  EXPECT_EQ(CanCompute(gpu).error().message, asked.message);
  EXPECT_EQ(GpuMemory().size_bytes(), 0u);
}

}  // namespace
}  // namespace convene::hardware
