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

TEST(Quote, CutsBetweenCharacters) {
  for (int num_before = 0; num_before < 4; ++num_before) {
    std::string text(static_cast<size_t>(num_before), 'x');
    while (text.size() < 200) text += "🙂";
    EXPECT_EQ(Quote(text).find('?'), std::string::npos) << num_before;
  }
}

TEST(Printable, KeepsTheControlCharactersThatAreAllowed) {
  EXPECT_EQ(Printable("a\tb\n\x1b[2J", "\n\t"), "a\tb\n?[2J");
  EXPECT_EQ(Printable("a\tb\n"), "a?b?");
}

}  // namespace
}  // namespace convene
