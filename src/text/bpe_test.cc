#include "text/bpe.h"

#include <gtest/gtest.h>

#include <random>
#include <set>
#include <string>
#include <vector>

namespace convene::text {
namespace {

using Ids = std::vector<int32_t>;

Vocabulary MakeVocabulary(const std::vector<std::string>& texts) {
  std::vector<Token> tokens;
  for (const std::string& text : texts) {
    tokens.push_back({.text = text, .id = static_cast<int32_t>(tokens.size())});
  }
  auto vocabulary = Vocabulary::Create(std::move(tokens));
  EXPECT_TRUE(vocabulary);
  return *std::move(vocabulary);
}

Bpe MakeBpe(const std::vector<std::string>& texts, const std::vector<Merge>& merges,
            BpeOptions options = {}) {
  auto bpe = Bpe::Create(MakeVocabulary(texts), merges, std::move(options));
  EXPECT_TRUE(bpe);
  return *std::move(bpe);
}

Ids Encode(const Bpe& bpe, std::string_view word) {
  Ids ids;
  WordCache cache;
  const Status status = bpe.Encode(word, &cache, &ids);
  EXPECT_TRUE(status) << status.error().message;
  return ids;
}

TEST(Bpe, MergesTheBestRankedPairFirstAndTheLeftmostOfEqualOnes) {
  const std::vector<std::string> texts{"a", "b", "c", "ab", "bc", "aa"};
  EXPECT_EQ(Encode(MakeBpe(texts, {{"a", "b"}, {"b", "c"}}), "abc"), (Ids{3, 2}));
  EXPECT_EQ(Encode(MakeBpe(texts, {{"b", "c"}, {"a", "b"}}), "abc"), (Ids{0, 4}));
  EXPECT_EQ(Encode(MakeBpe(texts, {{"a", "a"}}), "aaa"), (Ids{5, 0}));
}

TEST(Bpe, IsNotQuadraticInARunOfOneLetter) {
  std::vector<std::string> texts{"a"};
  std::vector<Merge> merges;
  while (texts.back().size() < 1024) {
    merges.push_back({texts.back(), texts.back()});
    texts.push_back(texts.back() + texts.back());
  }
  const Bpe bpe = MakeBpe(texts, merges);
  EXPECT_EQ(Encode(bpe, std::string(1 << 20, 'a')), Ids(1024, 10));
}

// What byte pair encoding is, in quadratic time.
std::vector<std::string> MergeNaively(std::string_view word, const std::vector<Merge>& merges) {
  std::vector<std::string> parts;
  for (const char c : word) parts.emplace_back(1, c);
  for (;;) {
    size_t best_rank = merges.size();
    size_t best = 0;
    for (size_t i = 0; i + 1 < parts.size(); ++i) {
      for (size_t rank = 0; rank < best_rank; ++rank) {
        if (merges[rank].left != parts[i] || merges[rank].right != parts[i + 1]) continue;
        best_rank = rank;
        best = i;
      }
    }
    if (best_rank == merges.size()) return parts;
    parts[best] += parts[best + 1];
    parts.erase(parts.begin() + static_cast<ptrdiff_t>(best) + 1);
  }
}

TEST(Bpe, EqualsTheDefinitionOnRandomVocabulariesAndWordsLongEnoughToBeCut) {
  std::mt19937 random(7);
  for (int round = 0; round < 60; ++round) {
    std::vector<std::string> texts{"a", "b", "c", "d"};
    std::vector<Merge> merges;
    std::set<std::string> known(texts.begin(), texts.end());
    for (int i = 0; i < 30; ++i) {
      const std::string left = texts[random() % texts.size()];
      const std::string right = texts[random() % texts.size()];
      // Only two letters beside "d", so that there is a place to cut.
      if (right[0] == 'd' || (left + right).size() > 9) continue;
      merges.push_back({left, right});
      if (known.insert(left + right).second) texts.push_back(left + right);
    }
    std::set<std::pair<std::string, std::string>> pairs;
    std::erase_if(merges, [&](const Merge& m) { return !pairs.insert({m.left, m.right}).second; });
    const Bpe bpe = MakeBpe(texts, merges);
    std::string word;
    const size_t length = round % 2 == 0 ? 1 + random() % 40 : 300 + random() % 300;
    while (word.size() < length) word += "abcd"[random() % 4];
    std::vector<std::string> parts;
    for (const int32_t id : Encode(bpe, word)) parts.push_back(texts[id]);
    ASSERT_EQ(parts, MergeNaively(word, merges)) << word;
  }
}

TEST(Bpe, GivesTheSameFromTheCache) {
  const Bpe bpe = MakeBpe({"a", "b", "ab"}, {{"a", "b"}});
  WordCache cache;
  Ids ids;
  for (int i = 0; i < 2; ++i) ASSERT_TRUE(bpe.Encode("abba", &cache, &ids));
  EXPECT_EQ(ids, (Ids{2, 1, 0, 2, 1, 0}));
  EXPECT_EQ(cache.size(), 1u);
}

TEST(Bpe, FusesUnknownCharactersAlsoInLongWords) {
  const Bpe bpe = MakeBpe({"<unk>", "a"}, {}, {.unk_token = "<unk>", .fuse_unk = true});
  EXPECT_EQ(Encode(bpe, "axyza"), (Ids{1, 0, 1}));
  EXPECT_EQ(Encode(bpe, "a" + std::string(1000, 'x') + "a"), (Ids{1, 0, 1}));
  const Bpe plain = MakeBpe({"<unk>", "a"}, {}, {.unk_token = "<unk>"});
  EXPECT_EQ(Encode(plain, "axya"), (Ids{1, 0, 0, 1}));
}

TEST(Bpe, FallsBackToBytes) {
  const Bpe bpe = MakeBpe({"<unk>", "a", "<0xC3>", "<0xA9>"}, {},
                          {.unk_token = "<unk>", .byte_fallback = true});
  EXPECT_EQ(Encode(bpe, "aé"), (Ids{1, 2, 3}));
  EXPECT_EQ(Encode(bpe, "aß"), (Ids{1, 0}));  // 0x9F is no token
}

TEST(Bpe, NamesAnUnknownTokenThatIsNone) {
  const Bpe bpe = MakeBpe({"a"}, {}, {.unk_token = "<unk>"});
  WordCache cache;
  Ids ids;
  EXPECT_TRUE(bpe.Encode("a", &cache, &ids));
  const Status status = bpe.Encode("é", &cache, &ids);
  ASSERT_FALSE(status);
  EXPECT_NE(status.error().message.find("<unk>"), std::string::npos);
}

TEST(Bpe, NamesTheTokenThatAMergeLacks) {
  for (const Merge& merge : std::vector<Merge>{{"zz", "a"}, {"a", "zz"}, {"z", "z"}}) {
    const auto bpe = Bpe::Create(MakeVocabulary({"a", "z"}), {merge}, {});
    ASSERT_FALSE(bpe);
    EXPECT_NE(bpe.error().message.find("\"zz\""), std::string::npos) << bpe.error().message;
  }
}

TEST(Vocabulary, RefusesIdsThatAreNegativeHugeOrGivenTwice) {
  EXPECT_FALSE(Vocabulary::Create({{.text = "a", .id = -1}}));
  EXPECT_FALSE(Vocabulary::Create({{.text = "a", .id = kMaxTokenId + 1}}));
  const auto twice = Vocabulary::Create({{.text = "a", .id = 3}, {.text = "b", .id = 3}});
  ASSERT_FALSE(twice);
  EXPECT_NE(twice.error().message.find("id 3"), std::string::npos);
}

TEST(Vocabulary, MayLeaveIdsOut) {
  const auto vocabulary = Vocabulary::Create({{.text = "a", .id = 3}});
  ASSERT_TRUE(vocabulary);
  EXPECT_EQ(vocabulary->max_id(), 3);
  EXPECT_EQ(vocabulary->num_tokens(), 1u);
  EXPECT_EQ(vocabulary->TextOf(2), nullptr);
  EXPECT_EQ(vocabulary->TextOf(4), nullptr);
  ASSERT_NE(vocabulary->TextOf(3), nullptr);
  EXPECT_EQ(*vocabulary->TextOf(3), "a");
}

}  // namespace
}  // namespace convene::text
