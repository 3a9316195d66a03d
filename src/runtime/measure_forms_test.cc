#include "runtime/measure_forms.h"

#include <gtest/gtest.h>

#include "kernels/choose_kernels.h"

namespace convene::runtime {
namespace {

TEST(MeasureExpandFromTokens, GivesALengthOrNever) {
  hardware::ThreadPool pool({0, 0});
  const kernels::KernelSet& kernels = *kernels::SupportedKernels().front();
  const Result<int> from = MeasureExpandFromTokens(pool, kernels, 0.01);
  ASSERT_TRUE(from) << from.error().message;
  EXPECT_GE(*from, 0);
  EXPECT_LE(*from, 256);
}

}  // namespace
}  // namespace convene::runtime
