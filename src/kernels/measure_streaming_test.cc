#include "kernels/measure_streaming.h"

#include <gtest/gtest.h>

#include "hardware/affinity.h"
#include "kernels/choose_kernels.h"

namespace convene::kernels {
namespace {

TEST(MeasureStreaming, ChoosesAWayThatThereIsForEverything) {
  hardware::ThreadPool pool(*hardware::CurrentAffinity());
  const Result<StreamingChoice> choice =
      MeasureStreaming(pool, **ChooseKernels(), 0.001, size_t{4} << 20);
  ASSERT_TRUE(choice) << choice.error().message;
  const auto again = StreamingChoice::FromNumbers(choice->numbers());
  ASSERT_TRUE(again.has_value());
  EXPECT_EQ(again->numbers(), choice->numbers());
}

}  // namespace
}  // namespace convene::kernels
