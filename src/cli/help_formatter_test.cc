#include "cli/help_formatter.h"

#include <gtest/gtest.h>

namespace convene::cli {
namespace {

TEST(WrapText, BreaksAtTheLastSpaceThatFits) {
  EXPECT_EQ(WrapText("one two three", 7), "one two\nthree");
  EXPECT_EQ(WrapText("one two three", 6), "one\ntwo\nthree");
  EXPECT_EQ(WrapText("one two", 100), "one two");
}

TEST(WrapText, KeepsLineBreaksAndLongWords) {
  EXPECT_EQ(WrapText("one\n\ntwo three\n", 100), "one\n\ntwo three\n");
  EXPECT_EQ(WrapText("unbreakable a", 5), "unbreakable\na");
  EXPECT_EQ(WrapText("", 5), "");
}

}  // namespace
}  // namespace convene::cli
