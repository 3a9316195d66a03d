// Skips all tests of a program that need a GPU where there is none that they can use.
#include <gtest/gtest.h>

#include "hardware/gpu.h"

namespace {

class NeedsGpu : public ::testing::Environment {
 public:
  void SetUp() override {
    const auto gpus = convene::hardware::FindGpus();
    ASSERT_TRUE(gpus) << gpus.error().message;
    // As GoogleTest writes it where a test skips itself, for ctest.
    constexpr const char* kMark = "[  SKIPPED ] ";
    if (gpus->empty()) GTEST_SKIP() << kMark << "there is no GPU here";
    const convene::Status can = convene::hardware::CanCompute(gpus->front());
    if (!can) GTEST_SKIP() << kMark << can.error().message;
  }
};

[[maybe_unused]] const auto* const kNeedsGpu =
    ::testing::AddGlobalTestEnvironment(new NeedsGpu);  // which deletes it

}  // namespace
