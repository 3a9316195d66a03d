#include "device/cuda.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace convene::device {
namespace {

TEST(WithoutCuda, SaysThatThisBuildHasNoneAndThatTheCpuNeedsNoAsking) {
  const auto device = MakeCudaDevice(1, nullptr);
  ASSERT_FALSE(device.ok());
  EXPECT_EQ(device.error().kind, ErrorKind::kUnavailable);
  EXPECT_THAT(device.error().message, ::testing::HasSubstr("GPU 1"));
  EXPECT_THAT(device.error().message, ::testing::HasSubstr("this build of convene has no CUDA"));
  EXPECT_THAT(device.error().message,
              ::testing::HasSubstr("the CPU is used where no device is asked for"));
  EXPECT_EQ(CudaBytes(1).error().message, device.error().message);
}

}  // namespace
}  // namespace convene::device
