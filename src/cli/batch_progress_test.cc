#include "cli/batch_progress.h"

#include <gtest/gtest.h>

namespace convene::cli {
namespace {

TEST(DescribeProgress, SaysWhatIsDoneHowFastAndHowLongTheRestTakes) {
  EXPECT_EQ(DescribeProgress(12, 1000, 853, 10.0),
            "batch: 12 of 1,000 requests done, 85.3 tokens/s, 13 min 44 s left");
  EXPECT_EQ(DescribeProgress(50, 100, 500, 50.0),
            "batch: 50 of 100 requests done, 10.0 tokens/s, 50 s left");
  EXPECT_EQ(DescribeProgress(1, 10000, 64, 2.0),
            "batch: 1 of 10,000 requests done, 32.0 tokens/s, 5 h 33 min left");
  EXPECT_EQ(DescribeProgress(100, 100, 500, 50.0),
            "batch: 100 of 100 requests done, 10.0 tokens/s, 0 s left");
}

TEST(DescribeProgress, ForeseesNothingBeforeARequestIsDone) {
  EXPECT_EQ(DescribeProgress(0, 5, 0, 0.0), "batch: 0 of 5 requests done, 0.0 tokens/s");
}

}  // namespace
}  // namespace convene::cli
