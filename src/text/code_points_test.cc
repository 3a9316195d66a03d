#include "text/code_points.h"

#include <gtest/gtest.h>

#include <string>

namespace convene::text {
namespace {

std::string LowerCaseOf(char32_t code_point) {
  std::string text;
  AppendLowerCase(code_point, &text);
  return text;
}

TEST(CodePoints, HaveTheCategoriesOfTheReferencesVersions) {
  EXPECT_TRUE(IsNumeric(U'7') && IsNumeric(U'½') && IsNumeric(U'Ⅷ') && IsNumeric(U'\U00011de0'));
  EXPECT_FALSE(IsNumeric(U'a') || IsNumeric(U'一') || IsNumeric(U'-'));
  EXPECT_TRUE(IsPunctuation(U'$') && IsPunctuation(U'~') && IsPunctuation(U'«') &&
              IsPunctuation(U'。'));
  EXPECT_TRUE(IsPunctuation(U'\u166d')) << "a symbol since Unicode 12";
  EXPECT_FALSE(IsPunctuation(U'\u2e52')) << "punctuation since Unicode 14";
  EXPECT_FALSE(IsPunctuation(U'a') || IsPunctuation(U'0') || IsPunctuation(U' ') ||
               IsPunctuation(U'€'));
  EXPECT_TRUE(IsMark(U'\u0301') && IsMark(U'\u0903') && IsMark(U'\u20dd'));
  EXPECT_FALSE(IsMark(U'é') || IsMark(U'\u0897'));
  EXPECT_TRUE(IsWhitespace(U' ') && IsWhitespace(U'\n') && IsWhitespace(U'\u00a0') &&
              IsWhitespace(U'\u3000'));
  EXPECT_FALSE(IsWhitespace(U'\u200b') || IsWhitespace(U'\ufeff') || IsWhitespace(U'_'));
}

TEST(CodePoints, HaveALowerCaseOfOneOrTwo) {
  EXPECT_EQ(LowerCaseOf(U'Ä'), "ä");
  EXPECT_EQ(LowerCaseOf(U'ä'), "ä");
  EXPECT_EQ(LowerCaseOf(U'İ'), "i\u0307");
  EXPECT_EQ(LowerCaseOf(U'Σ'), "σ");
  EXPECT_EQ(LowerCaseOf(U'\U00010d50'), "\U00010d70");  // Garay, Unicode 16
  EXPECT_EQ(LowerCaseOf(U'一'), "一");
}

TEST(CodePoints, HaveStandInsOfTheSameLength) {
  for (char32_t c = 0; c < 0x110000; ++c) {
    const char32_t stand_in = RegexStandIn(c);
    const auto length = [](char32_t d) {
      return d < 0x80 ? 1 : d < 0x800 ? 2 : d < 0x10000 ? 3 : 4;
    };
    ASSERT_EQ(length(c), length(stand_in)) << std::hex << static_cast<uint32_t>(c);
    ASSERT_EQ(RegexStandIn(stand_in), stand_in) << std::hex << static_cast<uint32_t>(c);
  }
  EXPECT_EQ(RegexStandIn(U'a'), U'a');
  EXPECT_NE(RegexStandIn(U'\U00010d4a'), U'\U00010d4a');
}

}  // namespace
}  // namespace convene::text
