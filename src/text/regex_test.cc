#include "text/regex.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace convene::text {
namespace {

std::vector<std::string> FindAll(std::string_view pattern, std::string_view text) {
  const auto regex = Regex::Compile(pattern);
  EXPECT_TRUE(regex);
  std::vector<Match> matches;
  EXPECT_TRUE(regex->FindAll(text, &matches));
  std::vector<std::string> found;
  for (const Match& match : matches) {
    found.emplace_back(text.substr(match.begin, match.end - match.begin));
  }
  return found;
}

using Strings = std::vector<std::string>;

TEST(Regex, FindsMatchesFromLeftToRight) {
  EXPECT_EQ(FindAll(R"(\p{L}+|\d)", "Größe 42"), (Strings{"Größe", "4", "2"}));
  EXPECT_EQ(FindAll(R"((?i:'S)|\s+(?!\S))", "it's  IT'S  "), (Strings{"'s", " ", "'S", "  "}));
  EXPECT_EQ(FindAll("a", "xyz"), Strings{});
  EXPECT_EQ(FindAll("a", ""), Strings{});
}

TEST(Regex, SkipsEmptyMatchesBehindAMatch) {
  EXPECT_EQ(FindAll("x*", "axxb"), (Strings{"", "xx", ""}));
  EXPECT_EQ(FindAll("x*", "é"), (Strings{"", ""}));
  EXPECT_EQ(FindAll("(?=b)", "abab").size(), 2u);
}

TEST(Regex, KnowsLettersNewerThanTheLibrary) {
  // A letter and a digit of Unicode 16, an ideograph of 15, a symbol of 16.
  EXPECT_EQ(FindAll(R"(\p{L}+)", "\U00010d4a a\U000323af"), (Strings{"\U00010d4a", "a\U000323af"}));
  EXPECT_EQ(FindAll(R"(\p{Nd})", "\U0001ccf0"), Strings{"\U0001ccf0"});
  EXPECT_EQ(FindAll(R"(\p{Han})", "\U000323af"), Strings{"\U000323af"});
  EXPECT_EQ(FindAll(R"(\p{So})", "\U0001fae9"), Strings{"\U0001fae9"});
  EXPECT_EQ(FindAll(R"(\p{Cn})", "\U0001fae9"), Strings{});
}

TEST(Regex, SaysWhatIsWrongWithAPattern) {
  const auto unbalanced = Regex::Compile("(a");
  ASSERT_FALSE(unbalanced);
  EXPECT_NE(unbalanced.error().message.find("\"(a\""), std::string::npos);
  const auto property = Regex::Compile(R"(\p{Nonsense})");
  ASSERT_FALSE(property);
  EXPECT_NE(property.error().message.find("Nonsense"), std::string::npos);
  EXPECT_FALSE(Regex::Compile("\xff"));
  EXPECT_FALSE(Regex::Compile(std::string((64 << 10) + 1, 'a')));
}

TEST(Regex, GivesUpWhereBacktrackingExplodes) {
  const auto regex = Regex::Compile("(a|aa)+$");
  ASSERT_TRUE(regex);
  std::vector<Match> matches;
  const Status status = regex->FindAll(std::string(200, 'a') + "b", &matches);
  ASSERT_FALSE(status);
  EXPECT_NE(status.error().message.find("201 bytes"), std::string::npos) << status.error().message;
}

TEST(Regex, WalksThroughLongRunsAsTokenizersNeedIt) {
  const std::string spaces(1 << 20, ' ');
  // Each alternative but the last walks over the whole run and back.
  EXPECT_EQ(FindAll(R"(\s*[\r\n]+|\s+(?!\S)|\s+)", spaces + "x").size(), 2u);
  EXPECT_EQ(FindAll(R"([^\r\n\p{L}\p{N}]?\p{L}+)", std::string(1 << 20, 'a')).size(), 1u);
}

TEST(Pattern, TakesLiteralTextAsItIs) {
  const auto pattern = Pattern::Literal("a.a");
  ASSERT_TRUE(pattern);
  std::vector<Match> matches;
  ASSERT_TRUE(pattern->FindAll("aba a.a.a", &matches));
  ASSERT_EQ(matches.size(), 1u);
  EXPECT_EQ(matches[0].begin, 4u);
  EXPECT_EQ(matches[0].end, 7u);
}

}  // namespace
}  // namespace convene::text
