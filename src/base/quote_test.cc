#include "base/quote.h"

#include <gtest/gtest.h>

namespace convene {
namespace {

TEST(Quote, KeepsPlainTextAndUnicode) {
  EXPECT_EQ(Quote("gate_proj"), "\"gate_proj\"");
  EXPECT_EQ(Quote("größe 専門家 🙂"), "\"größe 専門家 🙂\"");
  EXPECT_EQ(Quote(""), "\"\"");
}

TEST(Quote, RemovesWhatWouldDriveATerminal) {
  EXPECT_EQ(Quote("a\x1b[31m\n"), "\"a?[31m?\"");
  EXPECT_EQ(Quote("\xc2\x9b"), "\"??\"");
}

TEST(Quote, RemovesInvalidUtf8) {
  EXPECT_EQ(Quote("\xff"), "\"?\"");
  EXPECT_EQ(Quote("\xe5\xb0"), "\"??\"");
  EXPECT_EQ(Quote("\xc3("), "\"?(\"");
}

TEST(Quote, CutsLongText) {
  const std::string quoted = Quote(std::string(1000, 'x'));
  EXPECT_LT(quoted.size(), 120u);
  EXPECT_NE(quoted.find("..."), std::string::npos);
}

}  // namespace
}  // namespace convene
