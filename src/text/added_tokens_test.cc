#include "text/added_tokens.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace convene::text {
namespace {

Vocabulary MakeAddedVocabulary() {
  auto vocabulary = Vocabulary::Create({{.text = "x", .id = 0}, {.text = "<known>", .id = 1}});
  EXPECT_TRUE(vocabulary);
  return *std::move(vocabulary);
}

AddedTokens Add(const std::vector<AddedToken>& tokens, const Normalizer& normalizer = {}) {
  auto added = AddedTokens::Create(tokens, MakeAddedVocabulary(), normalizer);
  EXPECT_TRUE(added);
  return *std::move(added);
}

AddedToken Plain(std::string content) {
  return {.content = std::move(content), .normalized = false};
}

// The pieces with tokens as "#id".
std::vector<std::string> Cut(const AddedTokens& added, std::string_view text,
                             const Normalizer& normalizer = {}) {
  const auto pieces = added.Extract(text, normalizer, /*parse_special=*/true);
  EXPECT_TRUE(pieces);
  std::vector<std::string> shown;
  for (const Piece& piece : pieces->pieces) {
    shown.push_back(piece.token == kNoToken
                        ? pieces->text.substr(piece.begin, piece.end - piece.begin)
                        : "#" + std::to_string(piece.token));
  }
  return shown;
}

using Strings = std::vector<std::string>;

TEST(AddedTokens, KeepTheIdsOfTheVocabularyAndTakeTheNextFreeOnes) {
  const AddedTokens added =
      Add({Plain("<new>"), Plain("<known>"), Plain(""), Plain("<newer>"), Plain("<new>")});
  EXPECT_EQ(added.IdOf("<new>"), 2);
  EXPECT_EQ(added.IdOf("<known>"), 1);
  EXPECT_EQ(added.IdOf("<newer>"), 3);
  EXPECT_EQ(added.IdOf(""), std::nullopt);
  EXPECT_EQ(added.entries().size(), 3u);
}

TEST(AddedTokens, AreFoundLeftmostThenLongest) {
  const AddedTokens added = Add({Plain("ab"), Plain("abc"), Plain("bcd")});
  EXPECT_EQ(Cut(added, "xabcdabx"), (Strings{"x", "#3", "d", "#2", "x"}));
  EXPECT_EQ(Cut(added, "abab"), (Strings{"#2", "#2"}));
  EXPECT_EQ(Cut(added, ""), Strings{});
}

TEST(AddedTokens, MayBeSingleWords) {
  AddedToken word = Plain("word");
  word.single_word = true;
  const AddedTokens added = Add({word});
  EXPECT_EQ(Cut(added, "word, sword words"), (Strings{"#2", ", sword words"}));
  EXPECT_EQ(Cut(added, "²word¼"), (Strings{"²", "#2", "¼"})) << "no letters to the reference";
  EXPECT_EQ(Cut(added, "éword word\u0301"), (Strings{"éword word\u0301"}));
}

TEST(AddedTokens, MayTakeWhiteSpaceAlong) {
  AddedToken left = Plain("<l>");
  left.lstrip = true;
  AddedToken right = Plain("<r>");
  right.rstrip = true;
  const AddedTokens added = Add({left, right});
  EXPECT_EQ(Cut(added, "a \n<l> b <r>\u3000 c"), (Strings{"a", "#2", " b ", "#3", "c"}));
  EXPECT_EQ(Cut(added, "<r>  <l>"), (Strings{"#3", "#2"}));
}

TEST(AddedTokens, AreFoundInTheNormalizedTextIfNormalized) {
  const Normalizer lower({Lowercase{}});
  AddedToken day{.content = "DAY"};
  const AddedTokens added = Add({day, Plain("NIGHT")}, lower);
  EXPECT_EQ(Cut(added, "Day NIGHT night", lower), (Strings{"#2", " ", "#3", " night"}));
  EXPECT_EQ(added.entries()[0].spelling, "day");
}

}  // namespace
}  // namespace convene::text
