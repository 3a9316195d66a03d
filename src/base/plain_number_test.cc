#include "base/plain_number.h"

#include <gtest/gtest.h>

#include <cmath>

namespace convene {
namespace {

TEST(PlainNumber, IsRoundedAndHasNoPowers) {
  EXPECT_EQ(PlainNumber(20753), "20,750");
  EXPECT_EQ(PlainNumber(1234.5678e6), "1,235,000,000");
  EXPECT_EQ(PlainNumber(999.96), "1,000");
  EXPECT_EQ(PlainNumber(500), "500");
  EXPECT_EQ(PlainNumber(12.5), "12.5");
  EXPECT_EQ(PlainNumber(9.99996), "10");
  EXPECT_EQ(PlainNumber(1.23456, 3), "1.23");
  EXPECT_EQ(PlainNumber(0.000412345, 3), "0.000412");
  EXPECT_EQ(PlainNumber(1e-9), "0.000000001");
  EXPECT_EQ(PlainNumber(-2500), "-2,500");
  EXPECT_EQ(PlainNumber(0), "0");
  EXPECT_EQ(PlainNumber(INFINITY), "inf");
}

}  // namespace
}  // namespace convene
