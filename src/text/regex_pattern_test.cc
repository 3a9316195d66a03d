#include "text/regex_pattern.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "text/code_points.h"

namespace convene::text {
namespace {

TEST(RegexPattern, PunctuationIsSpeltOutInClassesOnly) {
  EXPECT_EQ(WithPackageClasses("[[:punct:]]+"), "[\\p{P}\\p{S}]+");
  EXPECT_EQ(WithPackageClasses("[^a[:punct:]b]"), "[^a\\p{P}\\p{S}b]");
  EXPECT_EQ(WithPackageClasses("[[:^punct:]]"), "[[^\\p{P}\\p{S}]]");
  EXPECT_EQ(WithPackageClasses("[[:alpha:][:punct:]]"), "[[:alpha:]\\p{P}\\p{S}]");
  EXPECT_EQ(WithPackageClasses("[]a[:punct:]]"), "[]a\\p{P}\\p{S}]");
  for (const char* same : {"", "[:punct:]", "\\[[:alpha:]\\]", "a\\", "[a[b&&[^c]]]", "[\\]]x", "[",
                           "[[:alpha:]", "[[:"}) {
    EXPECT_EQ(WithPackageClasses(same), same);
  }
}

std::vector<std::pair<char32_t, char32_t>> RangesOf(std::string_view pattern) {
  std::vector<std::pair<char32_t, char32_t>> pairs;
  for (const CodePointRange& range : ExplicitRanges(pattern)) {
    pairs.emplace_back(range.first, range.last);
  }
  return pairs;
}

TEST(RegexPattern, ExplicitRangesAreThoseBeyondAscii) {
  using Pairs = std::vector<std::pair<char32_t, char32_t>>;
  EXPECT_EQ(RangesOf("[a-z]+\\p{L}|\\s"), Pairs());
  EXPECT_EQ(RangesOf("[Ͱ-ͳͶ]"), (Pairs{{0x370, 0x373}, {0x376, 0x376}}));
  EXPECT_EQ(RangesOf("[\\x{A78B}-\\x{a7cf}\\u1c80-\\u1C8A\\xe9]"),
            (Pairs{{0xa78b, 0xa7cf}, {0x1c80, 0x1c8a}, {0xe9, 0xe9}}));
  EXPECT_EQ(RangesOf("[!-～é-]"), (Pairs{{'!', 0xff5e}, {0xe9, 0xe9}}));
  for (const char* odd : {"\\", "\\x", "\\x{", "\\u", "é-", "\\x{110000000}", "[é-a]"}) {
    ExplicitRanges(odd);  // ends
  }
}

// U+A7CB, a letter of Unicode 16, lies in no range of the pattern, its usual stand-in in one.
TEST(RegexPattern, StandInsLieInTheRangesOfWhatTheyStandFor) {
  const char32_t letter = 0xa7cb;
  const char32_t usual = RegexStandIn(letter);
  ASSERT_NE(usual, letter);
  std::string pattern = fmt::format("[\\x{{{:x}}}]", static_cast<uint32_t>(usual));
  const auto others = StandInsBeside(pattern);
  ASSERT_TRUE(others.contains(letter));
  EXPECT_NE(others.at(letter), usual);
  EXPECT_TRUE(StandInsBeside("\\p{L}+").empty());
}

TEST(RegexPattern, ManyRangesEnd) {
  std::string pattern = "[";
  for (uint32_t c = 0x100; pattern.size() < (60 << 10); c += 7) {
    pattern += fmt::format("\\x{{{:x}}}-\\x{{{:x}}}", c, c + 100);
  }
  StandInsBeside(pattern + "]");
}

}  // namespace
}  // namespace convene::text
