#include "text/character_map.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "text/base64.h"

namespace convene::text {
namespace {

std::string Bytes(const std::vector<uint32_t>& units, std::string_view replacements) {
  std::string bytes;
  const auto append = [&](uint32_t value) {
    for (int shift = 0; shift < 32; shift += 8) bytes += static_cast<char>(value >> shift);
  };
  append(static_cast<uint32_t>(4 * units.size()));
  for (const uint32_t unit : units) append(unit);
  return bytes + std::string(replacements);
}

// A trie of "a" alone, whose value stands at `value`.
std::vector<uint32_t> TrieOfA(uint32_t value) {
  std::vector<uint32_t> units(256);
  units[0] = 1 << 10;                                   // children at 0 ^ 1
  units[1 ^ 'a'] = 'a' | 1 << 8 | (1 ^ 'a' ^ 2) << 10;  // a value; children at 2
  units[2] = value | uint32_t{1} << 31;
  return units;
}

TEST(CharacterMap, FindsTheReplacementOfTheShortestBeginning) {
  const auto map = CharacterMap::Create(Bytes(TrieOfA(2), std::string("x\0y\0", 4)));
  ASSERT_TRUE(map) << map.error().message;
  EXPECT_EQ(map->Find("a"), "y");
  EXPECT_EQ(map->Find("abc"), "y");
  EXPECT_EQ(map->Find("b"), std::nullopt);
  EXPECT_EQ(map->Find(""), std::nullopt);
  EXPECT_EQ(map->Find(std::string_view("\0a", 2)), std::nullopt);
}

TEST(CharacterMap, TakesAMissingEndAndAnEmptyReplacement) {
  EXPECT_EQ(CharacterMap::Create(Bytes(TrieOfA(0), "xyz"))->Find("a"), "xyz");
  EXPECT_EQ(CharacterMap::Create(Bytes(TrieOfA(1), std::string("x\0\0", 3)))->Find("a"), "");
}

TEST(CharacterMap, RefusesSizesThatDoNotFit) {
  EXPECT_FALSE(CharacterMap::Create(""));
  EXPECT_FALSE(CharacterMap::Create("abc"));
  EXPECT_FALSE(CharacterMap::Create(Bytes({}, "x")));
  const std::string bytes = Bytes(TrieOfA(0), "x");
  EXPECT_FALSE(CharacterMap::Create(bytes.substr(0, 100)));
  EXPECT_FALSE(CharacterMap::Create("\x05" + bytes.substr(1)));
  EXPECT_FALSE(CharacterMap::Create(Bytes(TrieOfA(0), "\xff")));
}

TEST(CharacterMap, FindsNothingInADamagedTrie) {
  const std::string replacements = "é";
  // A value beyond the replacements, or within a character.
  EXPECT_EQ(CharacterMap::Create(Bytes(TrieOfA(1), replacements))->Find("a"), std::nullopt);
  EXPECT_EQ(CharacterMap::Create(Bytes(TrieOfA(99), replacements))->Find("a"), std::nullopt);
  // Units that point outside.
  std::vector<uint32_t> units = TrieOfA(0);
  units[0] = ~uint32_t{0};
  EXPECT_EQ(CharacterMap::Create(Bytes(units, replacements))->Find("a"), std::nullopt);
  units = TrieOfA(0);
  units[1 ^ 'a'] |= 0xfffffc00;
  EXPECT_EQ(CharacterMap::Create(Bytes(units, replacements))->Find("a"), std::nullopt);
}

TEST(Base64, DecodesWhatAnEncoderWrites) {
  EXPECT_EQ(DecodeBase64(""), "");
  EXPECT_EQ(DecodeBase64("TQ=="), "M");
  EXPECT_EQ(DecodeBase64("TWE="), "Ma");
  EXPECT_EQ(DecodeBase64("TWFu"), "Man");
  EXPECT_EQ(DecodeBase64("+/8A"), std::string("\xfb\xff\0", 3));
}

TEST(Base64, RefusesAnythingElse) {
  for (const char* text : {"T", "TQ", "TQ=", "T===", "====", "TR==", "TWF=", "TW=u",
                           "TQ==TQ==", "T-_u", "TWFu\n", " WFu"}) {
    EXPECT_EQ(DecodeBase64(text), std::nullopt) << text;
  }
}

}  // namespace
}  // namespace convene::text
