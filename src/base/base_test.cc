#include <gtest/gtest.h>

#include "base/result.h"
#include "base/units.h"

namespace convene {
namespace {

TEST(FormatBytes, KeepsThreeDigitsAndPicksTheUnit) {
  EXPECT_EQ(FormatBytes(0), "0 B");
  EXPECT_EQ(FormatBytes(1023), "1023 B");
  EXPECT_EQ(FormatBytes(1536), "1.50 KiB");
  EXPECT_EQ(FormatBytes(13838319616), "12.9 GiB");
  EXPECT_EQ(FormatBytes(1023 * 1024), "1.00 MiB");
}

TEST(FormatCount, SeparatesThousands) {
  EXPECT_EQ(FormatCount(0), "0");
  EXPECT_EQ(FormatCount(999), "999");
  EXPECT_EQ(FormatCount(6919161856), "6,919,161,856");
}

TEST(Result, HoldsAValueOrAnError) {
  Result<int> good = 3;
  ASSERT_TRUE(good);
  EXPECT_EQ(*good, 3);
  Result<int> bad = Error{"no"};
  ASSERT_FALSE(bad);
  EXPECT_EQ(bad.error().message, "no");
}

TEST(ResultDeathTest, ReadingAFailedResultEndsTheProcess) {
  Result<int> bad = Error{"disk is gone"};
  EXPECT_DEATH(static_cast<void>(*bad), "disk is gone");
}

}  // namespace
}  // namespace convene
