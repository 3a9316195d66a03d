#include "base/utf8.h"

#include <gtest/gtest.h>

#include <string>

namespace convene {
namespace {

TEST(Utf8, WritesAndReadsEveryCodePoint) {
  for (char32_t c = 0; c < 0x110000; ++c) {
    if (c >= 0xd800 && c < 0xe000) continue;
    std::string text = "x";
    AppendUtf8(c, &text);
    ASSERT_EQ(ValidUtf8Prefix(text), text.size());
    size_t at = 1;
    ASSERT_EQ(ReadCodePoint(text, &at), c);
    ASSERT_EQ(at, text.size());
    ASSERT_EQ(PreviousCharacter(text, text.size()), 1u);
  }
}

TEST(Utf8, StopsAtTheFirstBadByte) {
  const std::string good = "some good text é 東 🦜 ";
  for (const char* bad :
       {"\x80", "\xc0\xaf", "\xc1\xbf", "\xe0\x9f\xbf", "\xed\xa0\x80", "\xf0\x8f\xbf\xbf",
        "\xf4\x90\x80\x80", "\xf5\x80\x80\x80", "\xff", "\xc3", "\xe6\x9d", "\xf0\x9f\xa6"}) {
    EXPECT_EQ(ValidUtf8Prefix(good + bad), good.size());
    EXPECT_EQ(ValidUtf8Prefix(good + bad + "x"), good.size());
  }
  EXPECT_EQ(ValidUtf8Prefix(""), 0u);
}

TEST(Utf8, TellsMalformedBytesFromCutCharacters) {
  const auto unit = [](std::string_view bytes) { return NextUtf8(bytes); };
  EXPECT_EQ(unit("\xf0\x9f\xa6").kind, Utf8Kind::kCut);
  EXPECT_EQ(unit("\xf0\x9f\xa6").length, 3u);
  EXPECT_EQ(unit("\xf0\x9f\xa6x").kind, Utf8Kind::kMalformed);
  EXPECT_EQ(unit("\xf0\x9f\xa6x").length, 3u);  // one replacement for the whole beginning
  EXPECT_EQ(unit("\xed\xa0\x80").length, 1u);   // surrogates are no beginning of anything
  EXPECT_EQ(unit("\xe2\x82\xac!").kind, Utf8Kind::kCharacter);
  EXPECT_EQ(unit("\xe2\x82\xac!").length, 3u);
}

}  // namespace
}  // namespace convene
