#include "text/decoder.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace convene::text {
namespace {

using Strings = std::vector<std::string>;

// What each token lets out, then what the end does.
Strings Stream(const Decoder& decoder, const Strings& tokens) {
  DecoderState state(decoder);
  Strings parts;
  for (const std::string& token : tokens) {
    EXPECT_TRUE(state.Push(token, &parts.emplace_back()));
  }
  EXPECT_TRUE(state.Finish(&parts.emplace_back()));
  return parts;
}

Replace ReplaceText(std::string_view from, std::string to) {
  auto pattern = Pattern::Literal(from);
  EXPECT_TRUE(pattern);
  return {.pattern = *std::move(pattern), .content = std::move(to)};
}

Decoder SentencePieceDecoder() {
  return Decoder({ReplaceText("▁", " "), DecodeByteFallback{}, Fuse{},
                  StripToken{.content = " ", .start = 1, .stop = 0}});
}

TEST(Decoder, HoldsACharacterBackUntilItsBytesAreThere) {
  const Decoder decoder({DecodeByteLevel{}});
  // U+1F99C, one byte per token.
  EXPECT_EQ(Stream(decoder, {"a", "ð", "Ł", "¦", "ľ", "Ġb"}),
            (Strings{"a", "", "", "", "🦜", " b", ""}));
  EXPECT_EQ(Stream(decoder, {"ð", "Ł", "a"}), (Strings{"", "", "\ufffda", ""}));
  EXPECT_EQ(Stream(decoder, {"ð", "Ł"}), (Strings{"", "", "\ufffd"}));
}

TEST(Decoder, TakesTokensThatSpellNoBytesAsTheyAre) {
  EXPECT_EQ(Stream(Decoder({DecodeByteLevel{}}), {"<｜User｜>", "a b"}),
            (Strings{"<｜User｜>", "a b", ""}));
}

TEST(Decoder, DecidesOnARunOfByteTokensAtItsEnd) {
  const Decoder decoder = SentencePieceDecoder();
  EXPECT_EQ(Stream(decoder, {"▁a", "<0xC3>", "<0xA9>", "▁b"}), (Strings{"a", "", "", "é b", ""}));
  EXPECT_EQ(Stream(decoder, {"<0x41>", "<0xFF>", "x"}), (Strings{"", "", "\ufffd\ufffdx", ""}));
  EXPECT_EQ(Stream(decoder, {"<0xE2>", "<0x82>", "<0xAC>"}), (Strings{"", "", "", "€"}));
}

TEST(Decoder, StripsOnlyTheFirstSpaceOfTheText) {
  const Decoder decoder = SentencePieceDecoder();
  EXPECT_EQ(Stream(decoder, {"▁", "▁a", "▁b"}), (Strings{"", " a", " b", ""}));
  EXPECT_EQ(Stream(decoder, {"a", "▁b"}), (Strings{"a", " b", ""}));
}

TEST(Decoder, HoldsBackWhatMayBeStrippedAtTheEnd) {
  const Decoder decoder({Fuse{}, StripToken{.content = " ", .start = 0, .stop = 2}});
  EXPECT_EQ(Stream(decoder, {"a ", " ", " ", "b "}), (Strings{"a", "", " ", "  b", ""}));
  const Decoder far({Fuse{}, StripToken{.content = " ", .start = ~0ull, .stop = ~0ull}});
  EXPECT_EQ(Stream(far, {"  ", " a ", "  "}), (Strings{"", "a", "", ""}));
}

TEST(Decoder, HoldsBackTheBeginningOfAMatch) {
  const Decoder decoder({Fuse{}, ReplaceText("aab", "X")});
  EXPECT_EQ(Stream(decoder, {"a", "a", "a", "b", "a"}), (Strings{"", "", "a", "X", "", "a"}));
}

TEST(Decoder, WaitsForTheEndWhereARegularExpressionSeesTheFusedText) {
  auto pattern = Pattern::Expression("a+");
  ASSERT_TRUE(pattern);
  const Decoder decoder({Fuse{}, Replace{.pattern = *std::move(pattern), .content = "A"}});
  EXPECT_EQ(Stream(decoder, {"a", "ab"}), (Strings{"", "", "Ab"}));
}

TEST(Decoder, JoinsTokensBySpacesByDefault) {
  EXPECT_EQ(Stream(Decoder(), {"a", "b", ""}), (Strings{"a", " b", " ", ""}));
}

TEST(Decoder, KnowsTheBytesOfATokenInTheMiddle) {
  const Decoder byte_level({DecodeByteLevel{}});
  EXPECT_EQ(*byte_level.BytesOf("Ġð"), " \xf0");
  EXPECT_EQ(*SentencePieceDecoder().BytesOf("▁a▁"), " a ");
  EXPECT_EQ(*SentencePieceDecoder().BytesOf("<0xF0>"), "\xf0");
  const Decoder metaspace({DecodeMetaspace{.replacement = "▁", .drops_in_first = true}});
  EXPECT_EQ(*metaspace.BytesOf("▁a"), " a");
}

TEST(Decoder, BoundsWhatReplacementsMayGrowTo) {
  std::vector<DecoderStep> steps;
  for (int i = 0; i < 64; ++i) steps.emplace_back(ReplaceText("a", "aa"));
  const Decoder decoder(std::move(steps));
  DecoderState state(decoder);
  std::string text;
  EXPECT_FALSE(state.Push("a", &text));
  EXPECT_FALSE(decoder.BytesOf("a"));
}

}  // namespace
}  // namespace convene::text
