#include "cost/expected_sizes.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <numeric>
#include <random>
#include <set>

namespace convene::cost {
namespace {

using schedule::Size;
using schedule::SizeKind;
using testing::DoubleEq;
using testing::ElementsAre;
using testing::HasSubstr;

ExpectedRouting Uniform(int num_experts, int top_k, int num_ranks, int num_chunks, double rows) {
  ExpectedRouting routing = {.top_k = top_k,
                             .shares = {UniformShares(num_experts, top_k)},
                             .experts = {},
                             .rows = std::vector<double>(num_ranks, rows)};
  for (int rank = 0; rank < num_ranks; ++rank) {
    const int first = num_experts * rank / num_ranks;
    const int end = num_experts * (rank + 1) / num_ranks;
    std::vector<int> ends;
    for (int chunk = 1; chunk <= num_chunks; ++chunk) {
      ends.push_back((end - first) * chunk / num_chunks);
    }
    routing.experts.push_back(CutIntoChunks(first, ends));
  }
  return routing;
}

double SumOverChunks(const ExpectedSizes& sizes, SizeKind kind, int chunks, int from, int to) {
  double sum = 0;
  for (int chunk = 0; chunk < chunks; ++chunk) sum += sizes.at({kind, 0, chunk, from, to});
  return sum;
}

TEST(ExpectedSizes, TheFirstOfFourGroupsCarriesMostOfTheDispatch) {
  // 8 of 64 experts on 2 ranks: 68 % (docs: expert pipeline).
  const ExpectedSizes sizes(Uniform(64, 8, 2, 4, 1000));
  const double all = SumOverChunks(sizes, SizeKind::kSent, 4, 0, 1);
  EXPECT_NEAR(sizes.at({SizeKind::kSent, 0, 0, 0, 1}) / all, 0.68, 0.01);
  EXPECT_NEAR(sizes.at({SizeKind::kReturned, 0, 3, 1, 0}) / all, 0.68, 0.01);
  EXPECT_NEAR(sizes.at({SizeKind::kSent, 0, -1, 0, 1}), all, 1e-9);
  EXPECT_NEAR(SumOverChunks(sizes, SizeKind::kReturned, 4, 1, 0), all, 1e-9);
}

TEST(ExpectedSizes, WithEveryExpertVisitedEveryRowGoesToEveryRankOnce) {
  const ExpectedSizes sizes(Uniform(4, 4, 2, 2, 10));
  EXPECT_NEAR(sizes.at({SizeKind::kSent, 0, 0, 0, 1}), 10, 1e-4);
  EXPECT_NEAR(sizes.at({SizeKind::kSent, 0, 1, 0, 1}), 0, 1e-4);
  EXPECT_NEAR(sizes.at({SizeKind::kReturned, 0, 1, 1, 0}), 10, 1e-4);
  EXPECT_NEAR(sizes.at({SizeKind::kSlots, 0, 1, 1}), 20, 1e-9);
  EXPECT_NEAR(sizes.at({SizeKind::kExperts, 0, 1, 1}), 1, 1e-9);
}

TEST(ExpectedSizes, CutByTokensChunksFromOtherRanksAreAlike) {
  ExpectedRouting routing = Uniform(8, 2, 2, 1, 12);
  routing.token_chunks = 3;
  const ExpectedSizes sizes(routing);
  const double sent = sizes.at({SizeKind::kSent, 0, -1, 0, 1});
  EXPECT_NEAR(sizes.at({SizeKind::kSent, 0, 2, 0, 1}), sent / 3, 1e-12);
  // 4 of rank 0's 12 rows visit 2 experts each, one of them at rank 1, which has 4 experts.
  EXPECT_NEAR(sizes.at({SizeKind::kSlots, 0, 2, 1}), 4, 1e-12);
  EXPECT_NEAR(sizes.at({SizeKind::kExperts, 0, 0, 1}), 4 * (1 - std::pow(0.75, 4)), 1e-12);
  // Its own rows in two halves.
  EXPECT_NEAR(sizes.at({SizeKind::kSlots, 0, 3, 1}), 6, 1e-12);
  EXPECT_NEAR(sizes.at({SizeKind::kExperts, 0, 4, 1}), 4 * (1 - std::pow(0.75, 6)), 1e-12);
  EXPECT_NEAR(SumOverChunks(sizes, SizeKind::kSlots, 5, 1, -1),
              sizes.at({SizeKind::kSlots, 0, -1, 1}), 1e-12);
}

TEST(ExpectedSizes, RowsTokensKeysAndWantedAreThoseGiven) {
  ExpectedRouting routing = Uniform(4, 1, 2, 1, 5);
  routing.attention = [](const schedule::Size& size) { return size.from == 1 ? 200.0 : 100.0; };
  routing.wanted = {1, 0};
  const ExpectedSizes sizes(routing);
  EXPECT_EQ(sizes.at({SizeKind::kRows, -1, -1, 1}), 5);
  EXPECT_EQ(sizes.at({SizeKind::kTokens, -1, -1, 1}), 5);
  EXPECT_EQ(sizes.at({SizeKind::kKeys, -1, -1, 1}), 200);
  EXPECT_EQ(sizes.at({SizeKind::kWanted, -1, -1, 0}), 1);
}

TEST(ExpectedSizes, APrunedLayerRoutesWantedRowsOnly) {
  ExpectedRouting routing = Uniform(4, 1, 2, 1, 8);
  routing.wanted = {2, 0};
  routing.pruned_layer = 1;
  const ExpectedSizes sizes(routing);
  EXPECT_NEAR(sizes.at({SizeKind::kSent, 0, -1, 1, 0}), 4, 1e-12);
  EXPECT_NEAR(sizes.at({SizeKind::kSent, 1, -1, 1, 0}), 0, 1e-12);
  EXPECT_NEAR(sizes.at({SizeKind::kSent, 1, -1, 0, 1}), 1, 1e-12);
  EXPECT_NEAR(sizes.at({SizeKind::kSlots, 0, -1, 0}), 8, 1e-12);
  EXPECT_NEAR(sizes.at({SizeKind::kSlots, 1, -1, 0}), 1, 1e-12);
  EXPECT_NEAR(sizes.at({SizeKind::kExperts, 1, -1, 0}), 2 * (1 - std::pow(0.75, 2)), 1e-12);
}

TEST(ExpectedSizes, AllTokensToOneExpertGoToItsRank) {
  ExpectedRouting routing = Uniform(4, 1, 2, 2, 7);
  routing.shares = {SharesFromCounts({0, 0, 0, 14}, 1)};
  const ExpectedSizes sizes(routing);
  EXPECT_NEAR(sizes.at({SizeKind::kSent, 0, 1, 0, 1}), 7, 1e-4);
  EXPECT_NEAR(sizes.at({SizeKind::kSent, 0, 0, 0, 1}), 0, 1e-4);
  EXPECT_NEAR(sizes.at({SizeKind::kSent, 0, -1, 1, 0}), 0, 1e-4);
  EXPECT_NEAR(sizes.at({SizeKind::kSlots, 0, 1, 1}), 14, 1e-9);
  EXPECT_NEAR(sizes.at({SizeKind::kExperts, 0, -1, 1}), 1, 1e-9);
}

TEST(ExpectedSizes, SkewedSharesAgreeWithDraws) {
  // 3 of 8 experts drawn one after the other, by these odds.
  const std::vector<double> odds = {8, 4, 2, 2, 1, 1, 1, 1};
  std::mt19937 random(3);
  constexpr int kTokens = 40'000;
  std::vector<double> counts(8, 0);
  double first_half = 0;
  for (int token = 0; token < kTokens; ++token) {
    std::vector<double> left = odds;
    bool in_first_half = false;
    for (int i = 0; i < 3; ++i) {
      std::discrete_distribution<int> draw(left.begin(), left.end());
      const int expert = draw(random);
      left[expert] = 0;
      ++counts[expert];
      in_first_half = in_first_half || expert >= 4;
    }
    first_half += in_first_half;
  }
  ExpectedRouting routing = Uniform(8, 3, 2, 1, kTokens);
  routing.shares = {SharesFromCounts(counts, 3)};
  const ExpectedSizes sizes(routing);
  EXPECT_NEAR(sizes.at({SizeKind::kSent, 0, 0, 0, 1}) / first_half, 1, 0.03);
}

TEST(ExpectedSizes, AShareIsAtMostOne) {
  EXPECT_THAT(SharesFromCounts({6, 1, 1}, 2), ElementsAre(1, DoubleEq(0.5), DoubleEq(0.5)));
  EXPECT_THAT(SharesFromCounts({1, 1}, 2), ElementsAre(1, 1));
  EXPECT_THAT(SharesFromCounts({5, 0}, 2), ElementsAre(1, 0));
}

TEST(ExpectedSizes, ExpertsOfARankAreEvenlyCutWithRaggedTails) {
  EXPECT_THAT(CutIntoChunks(2, {1, 3}), ElementsAre(ElementsAre(2), ElementsAre(3, 4)));
  EXPECT_THAT(CutIntoChunks(4, {1, 1}), ElementsAre(ElementsAre(4), ElementsAre()));
}

TEST(ExpectedSizes, RouterStatisticsAreReadByLayer) {
  const auto counts = RouterCountsFromJson(
      nlohmann::json::parse(R"({"layers": [{"experts": []}, {"experts": [1, 2.5]}]})"));
  ASSERT_TRUE(counts.ok());
  EXPECT_THAT(*counts, ElementsAre(ElementsAre(), ElementsAre(1, 2.5)));
  ExpectedRouting routing = {.shares = {}, .experts = {CutIntoChunks(0, {2})}, .rows = {10}};
  for (const auto& layer : *counts) routing.shares.push_back(SharesFromCounts(layer, 1));
  EXPECT_NEAR(ExpectedSizes(routing).at({SizeKind::kSlots, 1, 0, 0}), 10, 1e-9);
}

TEST(ExpectedSizes, OtherStatisticsAreRefused) {
  const auto message = [](const char* text) {
    const auto counts = RouterCountsFromJson(nlohmann::json::parse(text));
    return counts.ok() ? "read" : counts.error().message;
  };
  EXPECT_THAT(message("[]"), HasSubstr("no list \"layers\""));
  EXPECT_THAT(message(R"({"layers": []})"), HasSubstr("no list \"layers\""));
  EXPECT_THAT(message(R"({"layers": [3]})"), HasSubstr("layer 0"));
  EXPECT_THAT(message(R"({"layers": [{"experts": [-1]}]})"), HasSubstr("from 0 on"));
  EXPECT_THAT(message(R"({"layers": [{"experts": ["a"]}]})"), HasSubstr("from 0 on"));
  EXPECT_THAT(message(R"({"layers": [{"experts": [0]}]})"), HasSubstr("no tokens"));
}

TEST(RecordedSizes, KnowWhatWasSetAndNothingElse) {
  RecordedSizes sizes;
  sizes.Set({SizeKind::kSent, 1, 2, 3, 4}, 5);
  EXPECT_EQ(sizes.at({SizeKind::kSent, 1, 2, 3, 4}), 5);
  EXPECT_EQ(sizes.at({SizeKind::kSent, 1, 2, 4, 3}), 0);
}

}  // namespace
}  // namespace convene::cost
