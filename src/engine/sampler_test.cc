#include "engine/sampler.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <map>
#include <string>

namespace convene::engine {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

// Two tokens tie for the largest.
const std::vector<float> kLogits = {2.0f, 1.5f,  -0.5f, 3.25f, 3.25f,
                                    0.0f, -2.0f, 1.0f,  2.75f, -1.0f};

// What draws work in; nothing in it outlives a call.
SamplerBuffers buffers;

std::map<int32_t, double> Probabilities(const SamplingOptions& options) {
  EXPECT_TRUE(Validate(options));
  Sampler sampler(options);
  for (const int32_t token : {3, 6, 6, 0}) sampler.Observe(token);
  std::map<int32_t, double> probabilities;
  double total = 0;
  for (const Candidate& candidate : sampler.Distribution(kLogits, buffers)) {
    EXPECT_TRUE(probabilities.emplace(candidate.token, candidate.weight).second);
    total += candidate.weight;
  }
  for (auto& [token, probability] : probabilities) probability /= total;
  return probabilities;
}

// Expected values: the logits processors and warpers of transformers 5.23.0 applied to kLogits and
// the tokens 3, 6, 6, 0.
struct SamplerCase {
  SamplingOptions options;
  std::map<int32_t, double> expected;
};

const SamplerCase kCases[] = {
    {{},
     {{0, 0.0880466},
      {1, 0.053403},
      {2, 0.0072273},
      {3, 0.3073129},
      {4, 0.3073129},
      {5, 0.0119158},
      {6, 0.0016126},
      {7, 0.0323905},
      {8, 0.1863947},
      {9, 0.0043836}}},
    {{.temperature = 0.5},
     {{0, 0.0329188},
      {1, 0.0121102},
      {2, 0.0002218},
      {3, 0.4010333},
      {4, 0.4010333},
      {5, 0.0006029},
      {6, 1.1e-05},
      {7, 0.0044551},
      {8, 0.1475319},
      {9, 8.16e-05}}},
    {{.top_k = 1}, {{3, 0.5}, {4, 0.5}}},
    {{.top_k = 3}, {{3, 0.3836517}, {4, 0.3836517}, {8, 0.2326965}}},
    {{.top_p = 0.5}, {{3, 0.5}, {4, 0.5}}},
    {{.top_p = 0.9},
     {{0, 0.0934211}, {1, 0.0566628}, {3, 0.3260718}, {4, 0.3260718}, {8, 0.1977725}}},
    {{.min_p = 0.2}, {{0, 0.0990326}, {3, 0.3456577}, {4, 0.3456577}, {8, 0.209652}}},
    {{.repetition_penalty = 1.3},
     {{0, 0.0689768},
      {1, 0.0663742},
      {2, 0.0089828},
      {3, 0.1804238},
      {4, 0.3819572},
      {5, 0.0148101},
      {6, 0.0011},
      {7, 0.040258},
      {8, 0.2316688},
      {9, 0.0054483}}},
    {{.temperature = 0.7, .top_k = 6, .top_p = 0.8, .min_p = 0.1, .repetition_penalty = 1.2},
     {{3, 0.2364435}, {4, 0.5126117}, {8, 0.2509448}}},
    {{.temperature = 2.0, .top_p = 0.95, .min_p = 0.3, .repetition_penalty = 0.8},
     {{0, 0.1732399}, {3, 0.3783908}, {4, 0.2520626}, {8, 0.1963066}}},
};

TEST(Sampler, HasTheDistributionOfTransformers) {
  for (size_t i = 0; i < std::size(kCases); ++i) {
    const std::map<int32_t, double> actual = Probabilities(kCases[i].options);
    ASSERT_EQ(actual.size(), kCases[i].expected.size()) << "case " << i;
    for (const auto& [token, probability] : kCases[i].expected) {
      ASSERT_TRUE(actual.contains(token)) << "case " << i << " token " << token;
      EXPECT_NEAR(actual.at(token), probability, 1e-6) << "case " << i << " token " << token;
    }
  }
}

TEST(Sampler, GreedyTakesTheLowestIdOfATie) {
  Sampler sampler({.temperature = 0});
  EXPECT_EQ(sampler.Sample(kLogits, 0, buffers), 3);
  EXPECT_EQ(ArgMax(kLogits), 3);
}

TEST(Sampler, TakesTheLargestWhereNothingChangesTheLogits) {
  EXPECT_TRUE(Sampler({.temperature = 0}).TakesLargest());
  EXPECT_TRUE(Sampler({.temperature = 0, .top_k = 5, .top_p = 0.5, .min_p = 0.1}).TakesLargest());
  for (const SamplingOptions& options :
       {SamplingOptions{}, SamplingOptions{.temperature = 0, .repetition_penalty = 1.1},
        SamplingOptions{.temperature = 0, .presence_penalty = 0.5},
        SamplingOptions{.temperature = 0, .frequency_penalty = -0.5},
        SamplingOptions{.temperature = 0, .logit_bias = {{.token = 1, .bias = 2}}}}) {
    EXPECT_FALSE(Sampler(options).TakesLargest());
  }
  Sampler sampler({.temperature = 0, .top_k = 5, .top_p = 0.5, .min_p = 0.1});
  sampler.Observe(3);
  sampler.ObserveAnswer(3);
  EXPECT_EQ(sampler.Sample(kLogits, 1, buffers), ArgMax(kLogits));
}

TEST(Sampler, GreedyHeedsTheRepetitionPenalty) {
  Sampler sampler({.temperature = 0, .repetition_penalty = 1.1});
  sampler.Observe(3);
  EXPECT_EQ(sampler.Sample(kLogits, 0, buffers), 4);
}

TEST(Sampler, AnswerPenaltiesCountTokensOfTheAnswerAlone) {
  const std::vector<float> logits = {2.0f, 1.8f, 1.5f};
  Sampler presence({.temperature = 0, .presence_penalty = 0.3});
  presence.Observe(0);  // of the prompt
  EXPECT_EQ(presence.Sample(logits, 0, buffers), 0);
  presence.ObserveAnswer(0);
  EXPECT_EQ(presence.Sample(logits, 1, buffers), 1);
  for (int i = 0; i < 5; ++i) presence.ObserveAnswer(1);
  EXPECT_EQ(presence.Sample(logits, 2, buffers), 0);  // 1.7, 1.5 and 1.5, however often

  Sampler frequency({.temperature = 0, .frequency_penalty = 0.15});
  frequency.ObserveAnswer(0);
  EXPECT_EQ(frequency.Sample(logits, 1, buffers), 0);
  frequency.ObserveAnswer(0);
  EXPECT_EQ(frequency.Sample(logits, 2, buffers), 1);
  Sampler favour({.temperature = 0, .frequency_penalty = -2});
  favour.ObserveAnswer(2);
  EXPECT_EQ(favour.Sample(logits, 1, buffers), 2);
}

TEST(Sampler, BiasesAreAddedBeforePenalties) {
  const std::vector<float> logits = {2.0f, 1.0f, -1.0f};
  Sampler banned({.temperature = 0, .logit_bias = {{0, -100}, {9, 100}}});
  EXPECT_EQ(banned.Sample(logits, 0, buffers), 1);
  // 2 against (-1 + 4.5) / 2 = 1.75; with the penalty first it would be -1 * 2 + 4.5 = 2.5.
  Sampler both({.temperature = 0, .repetition_penalty = 2, .logit_bias = {{2, 4.5f}}});
  both.Observe(2);
  EXPECT_EQ(both.Sample(logits, 0, buffers), 0);
}

TEST(Sampler, TopPOfZeroKeepsTheLikeliestAlone) {
  Sampler sampler({.top_p = 0});
  ASSERT_EQ(sampler.Distribution(kLogits, buffers).size(), 1u);
  EXPECT_EQ(sampler.Sample(kLogits, 5, buffers), 3);
}

TEST(Sampler, DrawDependsOnSeedAndIndexAlone) {
  const SamplingOptions options{.temperature = 3, .seed = 42};
  Sampler one(options);
  std::vector<int32_t> forward;
  for (int64_t i = 0; i < 100; ++i) forward.push_back(one.Sample(kLogits, i, buffers));
  Sampler other(options);
  for (int64_t i = 99; i >= 0; --i) {
    EXPECT_EQ(other.Sample(kLogits, i, buffers), forward[static_cast<size_t>(i)]);
  }
  Sampler third({.temperature = 3, .seed = 43});
  int num_same = 0;
  for (int64_t i = 0; i < 100; ++i) {
    num_same += third.Sample(kLogits, i, buffers) == forward[static_cast<size_t>(i)];
  }
  EXPECT_LT(num_same, 50);
}

TEST(Sampler, DrawsWithTheRightFrequencies) {
  const SamplingOptions options{.top_p = 0.9, .seed = 7};
  Sampler sampler(options);
  const std::map<int32_t, double> expected = Probabilities(options);
  std::map<int32_t, int> counts;
  constexpr int kDraws = 20000;
  for (int64_t i = 0; i < kDraws; ++i) ++counts[sampler.Sample(kLogits, i, buffers)];
  for (const auto& [token, count] : counts) ASSERT_TRUE(expected.contains(token)) << token;
  for (const auto& [token, probability] : expected) {
    // Five standard deviations of a binomial.
    const double tolerance = 5 * std::sqrt(probability * (1 - probability) / kDraws);
    EXPECT_NEAR(counts[token] / double{kDraws}, probability, tolerance) << token;
  }
}

// Large vocabularies are searched in blocks.
TEST(Sampler, DrawsFromALargeVocabularyAsFromEachTokenInTurn) {
  std::vector<float> logits(5003);
  for (size_t i = 0; i < logits.size(); ++i) {
    logits[i] = i < 1500 ? -kInfinity : static_cast<float>(i * 7919 % 1000) / 100;
  }
  // Of all tokens, and of all but none of them by another way.
  Sampler all({.seed = 3});
  Sampler narrowed({.top_k = 5003, .seed = 3});
  std::vector<double> sums(logits.size());
  double sum = 0;
  for (const Candidate& candidate : all.Distribution(logits, buffers)) {
    sum += candidate.weight;
    sums[static_cast<size_t>(candidate.token)] = sum;
  }
  for (int64_t i = 0; i < 300; ++i) {
    const auto token = static_cast<size_t>(all.Sample(logits, i, buffers));
    EXPECT_EQ(static_cast<size_t>(narrowed.Sample(logits, i, buffers)), token);
    // The draw is a share of the sum, the same for other tokens in as many of their own.
    const double share = (sums[token] - std::exp(logits[token] - 9.99f) / 2) / sum;
    EXPECT_NEAR(
        static_cast<double>(Sampler({.seed = 3}).Sample(std::vector<float>(1 << 16), i, buffers)) /
            (1 << 16),
        share, 2e-3);
  }
}

TEST(Sampler, NeverPicksImpossibleTokens) {
  const std::vector<float> logits = {-kInfinity, 0.0f, kNan, -kInfinity, 0.5f, -kInfinity};
  for (const SamplingOptions& options :
       {SamplingOptions{}, SamplingOptions{.top_k = 4}, SamplingOptions{.top_p = 0.99},
        SamplingOptions{.temperature = 1e-300}, SamplingOptions{.temperature = 1e-310},
        SamplingOptions{.min_p = 1}}) {
    Sampler sampler(options);
    for (int64_t i = 0; i < 200; ++i) {
      const int32_t token = sampler.Sample(logits, i, buffers);
      EXPECT_TRUE(token == 1 || token == 4) << token;
    }
  }
}

TEST(Sampler, SurvivesLogitsThatAreNoNumbers) {
  Sampler sampler({.top_k = 2, .top_p = 0.5});
  EXPECT_EQ(sampler.Sample(std::vector<float>{kNan, kNan, kNan}, 0, buffers), 0);
  EXPECT_EQ(sampler.Sample(std::vector<float>{0, kInfinity, 1}, 0, buffers), 1);
  EXPECT_EQ(sampler.Sample(std::vector<float>{-kInfinity, -kInfinity}, 0, buffers), 0);
}

TEST(MergeSampling, WhatIsGivenReplacesTheDefault) {
  const SamplingOptions defaults = {
      .temperature = 0.7, .top_k = 50, .top_p = 0.9, .repetition_penalty = 1.1, .seed = 3};
  SamplingOptions merged = MergeSampling(defaults, {});
  EXPECT_EQ(merged.temperature, 0.7);
  EXPECT_EQ(merged.top_k, 50);
  EXPECT_EQ(merged.repetition_penalty, 1.1);
  merged = MergeSampling(defaults, {.top_k = 0, .top_p = 0.5, .min_p = 0.1});
  EXPECT_EQ(merged.temperature, 0.7);
  EXPECT_EQ(merged.top_k, 0);
  EXPECT_EQ(merged.top_p, 0.5);
  EXPECT_EQ(merged.min_p, 0.1);
  EXPECT_EQ(merged.seed, 3u);
}

TEST(MergeSampling, NarrowingTheChoiceOfAGreedyModelSamples) {
  const SamplingOptions greedy = {.temperature = 0};
  EXPECT_EQ(MergeSampling(greedy, {.top_k = 40}).temperature, 1);
  EXPECT_EQ(MergeSampling(greedy, {.top_p = 0.9}).temperature, 1);
  EXPECT_EQ(MergeSampling(greedy, {.min_p = 0.1}).temperature, 1);
  EXPECT_EQ(MergeSampling(greedy, {.temperature = 0, .top_p = 0.9}).temperature, 0);
  EXPECT_EQ(MergeSampling(greedy, {.repetition_penalty = 1.1}).temperature, 0);
}

TEST(Sampler, RefusesOptionsOutOfRangeByName) {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  const std::pair<SamplingOptions, std::string> cases[] = {
      {{.temperature = -0.1}, "temperature -0.1"},
      {{.temperature = nan}, "temperature nan"},
      {{.top_k = -1}, "top_k -1"},
      {{.top_p = 1.5}, "top_p 1.5"},
      {{.min_p = -1}, "min_p -1"},
      {{.repetition_penalty = 0}, "repetition_penalty 0"},
      {{.repetition_penalty = nan}, "repetition_penalty nan"},
      {{.presence_penalty = 2.5}, "presence_penalty 2.5"},
      {{.frequency_penalty = nan}, "frequency_penalty nan"},
      {{.logit_bias = {{7, 101}}}, "logit_bias 101 of token 7"},
  };
  for (const auto& [options, message] : cases) {
    const Status status = Validate(options);
    ASSERT_FALSE(status) << message;
    EXPECT_THAT(status.error().message, HasSubstr(message));
  }
}

TEST(TopLogprobs, AreLogSoftmaxOfTheRawLogits) {
  const std::vector<TokenLogprob> top = TopLogprobs(kLogits, 3);
  ASSERT_EQ(top.size(), 3u);
  EXPECT_THAT((std::vector<int32_t>{top[0].token, top[1].token, top[2].token}),
              ElementsAre(3, 4, 8));
  EXPECT_NEAR(top[0].logprob, std::log(0.3073129), 1e-6);
  EXPECT_NEAR(top[2].logprob, std::log(0.1863947), 1e-6);
  EXPECT_EQ(TopLogprobs(kLogits, 50).size(), kLogits.size());
  EXPECT_TRUE(TopLogprobs(kLogits, 0).empty());
}

TEST(TopLogprobs, NeitherOverflowNorLoseSmallOnes) {
  const std::vector<TokenLogprob> top = TopLogprobs(std::vector<float>{1000, 0}, 2);
  EXPECT_NEAR(top[0].logprob, 0, 1e-9);
  EXPECT_NEAR(top[1].logprob, -1000, 1e-9);
  EXPECT_NEAR(LogSumExp(std::vector<float>{1000, 0}), 1000, 1e-9);
  EXPECT_NEAR(LogSumExp(std::vector<float>{-1000, -1000}), -1000 + std::log(2.0), 1e-9);
}

TEST(Sampler, TakesOnlyWhatIsAllowed) {
  const std::vector<float> logits = {5, 1, 3, 2, 4};
  const std::vector<uint64_t> allowed = {0b01110};  // not 0 and 4, the likeliest
  EXPECT_EQ(Sampler({.temperature = 0}).Sample(logits, 0, buffers, allowed), 2);
  // All that narrows works among them.
  for (const SamplingOptions& options :
       {SamplingOptions{.top_k = 2}, SamplingOptions{.top_p = 0.6}, SamplingOptions{.min_p = 0.2},
        SamplingOptions{.repetition_penalty = 2.0}, SamplingOptions{}}) {
    Sampler sampler(options);
    double total = 0;
    for (const Candidate& candidate : sampler.Distribution(logits, buffers, allowed)) {
      total += candidate.weight;
      if (candidate.weight == 0) continue;
      EXPECT_TRUE(candidate.token >= 1 && candidate.token <= 3) << candidate.token;
    }
    EXPECT_GE(total, 1);
    for (int64_t i = 0; i < 50; ++i) {
      const int32_t token = sampler.Sample(logits, i, buffers, allowed);
      EXPECT_TRUE(token >= 1 && token <= 3) << token;
    }
  }
  EXPECT_EQ(Sampler({.min_p = 0.9}).Distribution(logits, buffers, allowed).size(), 1u);
  // Tokens beyond the bits are not allowed.
  std::vector<float> large(200, 0);
  large[150] = 9;
  EXPECT_EQ(Sampler({.temperature = 0}).Sample(large, 0, buffers, allowed), 1);
}

}  // namespace
}  // namespace convene::engine
