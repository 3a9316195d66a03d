#include "text/pre_tokenizer.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "text/code_points.h"

namespace convene::text {
namespace {

using Strings = std::vector<std::string>;

Pieces MakePieces(const Strings& words) {
  Pieces pieces;
  for (const std::string& word : words) {
    const size_t begin = pieces.text.size();
    pieces.text += word;
    pieces.pieces.push_back({.begin = begin, .end = pieces.text.size()});
  }
  pieces.num_origin_bytes = 1;
  return pieces;
}

Strings Words(const Pieces& pieces) {
  Strings words;
  for (const Piece& piece : pieces.pieces) {
    words.push_back(pieces.text.substr(piece.begin, piece.end - piece.begin));
  }
  return words;
}

TEST(PreTokenizer, PrefixesOnlyThePieceThatBeginsTheText) {
  const PreTokenizer first({PrefixPieces{.prefix = "_", .only_first = true}});
  Pieces pieces = MakePieces({"ab", "cd"});
  ASSERT_TRUE(first.Apply(&pieces));
  EXPECT_EQ(Words(pieces), (Strings{"_ab", "cd"}));
  ASSERT_TRUE(first.Apply(&pieces));
  EXPECT_EQ(Words(pieces), (Strings{"_ab", "cd"})) << "which has its prefix";

  Pieces later = MakePieces({"ab", "cd"});
  later.num_origin_bytes = 0;
  ASSERT_TRUE(first.Apply(&later));
  EXPECT_EQ(Words(later), (Strings{"ab", "cd"}));
}

TEST(PreTokenizer, LeavesTokensAlone) {
  Pieces pieces = MakePieces({"a1", "b2", "c3"});
  pieces.pieces[1].token = 7;
  const PreTokenizer digits({Split{.pattern = &IsNumeric}, SpellPieces{}});
  ASSERT_TRUE(digits.Apply(&pieces));
  ASSERT_EQ(pieces.pieces.size(), 5u);
  EXPECT_EQ(pieces.pieces[2].token, 7);
  EXPECT_EQ(Words(pieces)[3], "c");
}

TEST(PreTokenizer, BoundsTheGrowthOfTheText) {
  Pieces pieces = MakePieces({" "});
  const PreTokenizer doubling(std::vector<PreTokenizerStep>(64, SpellPieces{}));
  EXPECT_FALSE(doubling.Apply(&pieces));
}

}  // namespace
}  // namespace convene::text
