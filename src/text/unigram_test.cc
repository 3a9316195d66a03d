#include "text/unigram.h"

#include <gtest/gtest.h>

#include <map>
#include <random>
#include <string>
#include <utility>
#include <vector>

namespace convene::text {
namespace {

using Ids = std::vector<int32_t>;
using Scores = std::vector<std::pair<std::string, double>>;

Result<Unigram> Make(const Scores& vocab, UnigramOptions options = {.unk_id = 0}) {
  std::vector<Token> tokens;
  std::vector<double> scores;
  for (const auto& [text, score] : vocab) {
    tokens.push_back({.text = text, .id = static_cast<int32_t>(tokens.size())});
    scores.push_back(score);
  }
  auto vocabulary = Vocabulary::Create(std::move(tokens));
  EXPECT_TRUE(vocabulary);
  return Unigram::Create(*std::move(vocabulary), std::move(scores), options);
}

Ids EncodeUnigram(const Unigram& unigram, std::string_view word) {
  Ids ids;
  WordCache cache;
  const Status status = unigram.Encode(word, &cache, &ids);
  EXPECT_TRUE(status) << status.error().message;
  Ids again;
  EXPECT_TRUE(unigram.Encode(word, &cache, &again));
  EXPECT_EQ(ids, again);
  return ids;
}

Ids EncodeUnigram(const Scores& vocab, std::string_view word,
                  UnigramOptions options = {.unk_id = 0}) {
  const auto unigram = Make(vocab, options);
  EXPECT_TRUE(unigram) << unigram.error().message;
  return EncodeUnigram(*unigram, word);
}

TEST(Unigram, TakesTheWayWhoseScoresAddUpToTheMost) {
  const Scores vocab{{"<unk>", 0}, {"a", -1}, {"b", -1}, {"c", -5}, {"ab", -3}, {"bc", -2}};
  EXPECT_EQ(EncodeUnigram(vocab, ""), Ids{});
  EXPECT_EQ(EncodeUnigram(vocab, "ab"), (Ids{1, 2}));
  EXPECT_EQ(EncodeUnigram(vocab, "abc"), (Ids{1, 5}));
}

TEST(Unigram, KeepsTheFirstOfEqualWays) {
  // Ways that arrive from further back come first.
  EXPECT_EQ(EncodeUnigram({{"<unk>", 0}, {"a", -1}, {"aa", -2}}, "aaa"), (Ids{1, 2}));
  EXPECT_EQ(EncodeUnigram({{"<unk>", 0}, {"a", -1}, {"b", -1}, {"ab", -2}}, "ab"), (Ids{3}));
}

TEST(Unigram, FusesUnknownCharactersAndLooksThemUpTogether) {
  const Scores vocab{{"<unk>", 0}, {"a", -1}, {"xy", -50}};
  EXPECT_EQ(EncodeUnigram(vocab, "xxx"), Ids{0});
  EXPECT_EQ(EncodeUnigram(vocab, "zéz"), Ids{0});
  EXPECT_EQ(EncodeUnigram(vocab, "xaxx"), (Ids{0, 1, 0}));
  EXPECT_EQ(EncodeUnigram(vocab, "xy"), Ids{2});  // though two unknown characters would score more
  EXPECT_EQ(EncodeUnigram(vocab, "a<unk>"), (Ids{1, 0}));
  EXPECT_EQ(EncodeUnigram(vocab, "x<unk>x"), Ids{0});  // the token itself counts as unknown text
}

TEST(Unigram, SpellsUnknownTextInBytesIfItHasThemAll) {
  const Scores vocab{{"<unk>", 0}, {"a", -1}, {"<0xC3>", -9}, {"<0xA9>", -9}};
  const UnigramOptions bytes{.unk_id = 0, .byte_fallback = true};
  EXPECT_EQ(EncodeUnigram(vocab, "aéa", bytes), (Ids{1, 2, 3, 1}));
  EXPECT_EQ(EncodeUnigram(vocab, "éé", bytes), (Ids{2, 3, 2, 3}));
  EXPECT_EQ(EncodeUnigram(vocab, "éx", bytes), Ids{0});
  EXPECT_EQ(EncodeUnigram(vocab, "é", {.unk_id = 0}), Ids{0});
}

TEST(Unigram, NeedsAnUnknownTokenOnlyForUnknownCharacters) {
  const auto unigram = Make({{"a", -1}}, {});
  ASSERT_TRUE(unigram);
  EXPECT_EQ(EncodeUnigram(*unigram, "aa"), (Ids{0, 0}));
  Ids ids;
  WordCache cache;
  const Status status = unigram->Encode("ab", &cache, &ids);
  ASSERT_FALSE(status);
  EXPECT_NE(status.error().message.find("\"b\""), std::string::npos);
}

TEST(Unigram, RefusesContradictionsAndTokensThatAreTooLong) {
  EXPECT_FALSE(Make({{"a", 0}}, {.unk_id = 1}));
  EXPECT_FALSE(Make({{"a", 0}}, {.unk_id = -1}));
  EXPECT_FALSE(Make({}, {.unk_id = 0}));
  EXPECT_TRUE(Make({}, {}));
  EXPECT_FALSE(Make({{"a", 0}, {"b", 0}, {"a", 0}}));
  EXPECT_TRUE(Make({{std::string(kMaxUnigramTokenBytes, 'a'), 0}}));
  EXPECT_FALSE(Make({{std::string(kMaxUnigramTokenBytes + 1, 'a'), 0}}));
}

TEST(Unigram, IgnoresAnEmptyToken) {
  EXPECT_EQ(EncodeUnigram({{"<unk>", 0}, {"", 5}, {"a", -1}}, "aa"), (Ids{2, 2}));
}

// The best sum of scores over all ways to cut `word`, in exponential time but for the memory.
double BestScore(const std::map<std::string, double>& scores, const std::string& word,
                 std::map<std::string, double>* memory) {
  if (word.empty()) return 0;
  if (const auto found = memory->find(word); found != memory->end()) return found->second;
  double best = -1e9;
  for (size_t length = 1; length <= word.size(); ++length) {
    const auto token = scores.find(word.substr(0, length));
    if (token == scores.end()) continue;
    best = std::max(best, token->second + BestScore(scores, word.substr(length), memory));
  }
  return (*memory)[word] = best;
}

TEST(Unigram, FindsTheBestWayThroughLongWordsThatItDecidesInParts) {
  std::mt19937 random(3);
  Scores vocab{{"<unk>", 0}, {"a", -3}, {"b", -4}, {"c", -5}, {"|", -1}};
  std::map<std::string, double> scores(vocab.begin() + 1, vocab.end());
  while (vocab.size() < 40) {
    std::string text;
    for (size_t i = 0, length = 2 + random() % 5; i < length; ++i) text += "abc"[random() % 3];
    const double score = -static_cast<double>(random() % 1000) / 64;
    if (scores.emplace(text, score).second) vocab.emplace_back(text, score);
  }
  const auto unigram = Make(vocab);
  ASSERT_TRUE(unigram);
  for (int round = 0; round < 20; ++round) {
    std::string word;
    for (int i = 0; i < 500; ++i) word += "abc|"[random() % 4];
    std::string joined;
    double sum = 0;
    for (const int32_t id : EncodeUnigram(*unigram, word)) {
      joined += vocab[id].first;
      sum += vocab[id].second;
    }
    EXPECT_EQ(joined, word);
    std::map<std::string, double> memory;
    EXPECT_DOUBLE_EQ(sum, BestScore(scores, word, &memory));
  }
}

TEST(Unigram, IsLinearInARunOfOneLetter) {
  Scores vocab{{"<unk>", 0}};
  for (int length = 1; length <= 512; length *= 2) {
    vocab.emplace_back(std::string(length, 'a'), -1.0);
  }
  const auto unigram = Make(vocab);
  ASSERT_TRUE(unigram);
  EXPECT_EQ(EncodeUnigram(*unigram, std::string(1 << 16, 'a')), Ids(128, 10));
}

}  // namespace
}  // namespace convene::text
