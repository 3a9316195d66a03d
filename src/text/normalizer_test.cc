#include "text/normalizer.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "text/graphemes.h"

namespace convene::text {
namespace {

Replace ReplaceWithText(std::string_view from, std::string to) {
  auto pattern = Pattern::Literal(from);
  EXPECT_TRUE(pattern);
  return {.pattern = *std::move(pattern), .content = std::move(to)};
}

NormalizedText Apply(std::vector<NormalizerStep> steps, NormalizedText text) {
  const Status status = Normalizer(std::move(steps)).Apply(&text);
  EXPECT_TRUE(status);
  return text;
}

std::string Apply(std::vector<NormalizerStep> steps, std::string text) {
  return Apply(std::move(steps), NormalizedText{.text = std::move(text)}).text;
}

TEST(Normalizer, ComposesAndDecomposes) {
  EXPECT_EQ(Apply({UnicodeForm::kNfc}, "plain, cafe\u0301 and 한국"), "plain, caf\u00e9 and 한국");
  EXPECT_EQ(Apply({UnicodeForm::kNfd}, "caf\u00e9!"), "cafe\u0301!");
  EXPECT_EQ(Apply({UnicodeForm::kNfkc}, "ﬁne ²"), "fine 2");
  EXPECT_EQ(Apply({UnicodeForm::kNfc}, "e\u0323\u0307 e\u0307\u0323"), "ẹ\u0307 ẹ\u0307");
}

TEST(Normalizer, LeavesWhatIsNewerThanTheReferencesDataInItsPlace) {
  // U+07FD is a mark of class 220 since Unicode 11: by today's data it would move before U+0301.
  EXPECT_EQ(Apply({UnicodeForm::kNfc}, "q\u0301\u07fd"), "q\u0301\u07fd");
  EXPECT_EQ(Apply({UnicodeForm::kNfkd}, "\u32ff"), "\u32ff");  // the era Reiwa, Unicode 12.1
}

TEST(Normalizer, TracksWhereTheOriginalBegins) {
  const auto origin = [](std::vector<NormalizerStep> steps, std::string text) {
    return Apply(std::move(steps), NormalizedText{.text = std::move(text), .num_origin_bytes = 1})
        .num_origin_bytes;
  };
  EXPECT_EQ(origin({}, "abc"), 1u);
  EXPECT_EQ(origin({Prepend{.prefix = "__"}}, "abc"), 3u);
  EXPECT_EQ(origin({Strip{.left = true, .right = true}}, " abc "), 0u);
  EXPECT_EQ(origin({Strip{.left = false, .right = true}}, " abc "), 1u);
  EXPECT_EQ(origin({ReplaceWithText("a", "xyz")}, "abc"), 3u);
  EXPECT_EQ(origin({ReplaceWithText("ab", "xyz")}, "abc"), 0u);
  EXPECT_EQ(origin({Lowercase{}}, "Abc"), 1u);
  EXPECT_EQ(origin({SpellBytes{}}, " bc"), 2u);
}

TEST(Graphemes, EndWhereReadersSeeThem) {
  EXPECT_EQ(GraphemeEnd("ab", 0), 1u);
  EXPECT_EQ(GraphemeEnd("ab", 1), 2u);
  EXPECT_EQ(GraphemeEnd("\r\nb", 0), 2u);
  EXPECT_EQ(GraphemeEnd("\ra", 0), 1u);
  EXPECT_EQ(GraphemeEnd("e\u0301\u0302x", 0), 5u);
  EXPECT_EQ(GraphemeEnd("x\u1acfy", 0), 4u);  // a mark of Unicode 17
  EXPECT_EQ(GraphemeEnd("\u0600ab", 0), 3u);
  EXPECT_EQ(GraphemeEnd("👨‍👩‍👧x", 0), 18u);
}

TEST(Normalizer, BoundsTheGrowthOfTheText) {
  const std::vector<NormalizerStep> doubling(64, ReplaceWithText("a", "aa"));
  NormalizedText text{.text = "a"};
  const Status status = Normalizer(doubling).Apply(&text);
  ASSERT_FALSE(status);
  EXPECT_NE(status.error().message.find("text of 1 bytes"), std::string::npos);
  NormalizedText spelled{.text = " "};
  EXPECT_FALSE(Normalizer(std::vector<NormalizerStep>(64, SpellBytes{})).Apply(&spelled));
  NormalizedText large{.text = std::string(1 << 20, 'a')};
  EXPECT_FALSE(Normalizer({ReplaceWithText("a", std::string(1 << 20, 'b'))}).Apply(&large));
}

}  // namespace
}  // namespace convene::text
