#include "runtime/router_override.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <set>
#include <vector>

namespace convene::runtime {
namespace {

constexpr int kTokens = 20'000;

// How many tokens go to the first experts, after checking each of them.
int CountSkewed(const RouterOverride& router, int num_experts, int top_k) {
  int num_skewed = 0;
  for (int token = 0; token < kTokens; ++token) {
    std::vector<int32_t> experts(static_cast<size_t>(top_k), -1);
    OverrideExperts(router, num_experts, static_cast<uint64_t>(token), experts);
    EXPECT_TRUE(std::is_sorted(experts.begin(), experts.end()));
    EXPECT_EQ(std::set<int32_t>(experts.begin(), experts.end()).size(), experts.size());
    EXPECT_GE(experts.front(), 0);
    EXPECT_LT(experts.back(), num_experts);
    const bool is_skewed = experts.front() < router.num_experts;
    // All of them are on one side.
    EXPECT_EQ(experts.back() < router.num_experts, is_skewed);
    num_skewed += is_skewed;
  }
  return num_skewed;
}

TEST(RouterOverride, AShareOfTheTokensGoesToTheFirstExperts) {
  for (const double skew : {0.0, 0.3, 0.6, 0.9, 1.0}) {
    const double share = CountSkewed({.skew = skew, .num_experts = 12}, 64, 8) / double{kTokens};
    // Five standard deviations of a share of so many draws.
    EXPECT_NEAR(share, skew, 5 * std::sqrt(0.25 / kTokens)) << skew;
  }
}

TEST(RouterOverride, ExpertsOfASideAreChosenAlike) {
  std::vector<int> counts(8, 0);
  for (int token = 0; token < kTokens; ++token) {
    std::vector<int32_t> experts(2);
    OverrideExperts({.skew = 0.5, .num_experts = 4}, 8, static_cast<uint64_t>(token), experts);
    for (const int32_t expert : experts) ++counts[expert];
  }
  for (const int count : counts) EXPECT_NEAR(count, kTokens / 4, 500);
}

TEST(RouterOverride, WhereTheOthersAreTooFewAllGoToTheFirst) {
  EXPECT_EQ(CountSkewed({.skew = 0, .num_experts = 7}, 8, 2), kTokens);
  EXPECT_EQ(CountSkewed({.skew = 0, .num_experts = 8}, 8, 8), kTokens);
}

TEST(RouterOverride, DependsOnTheKeyAlone) {
  std::vector<int32_t> once(4);
  std::vector<int32_t> again(4, 3);
  std::vector<int32_t> other(4);
  const RouterOverride router{.skew = 0.5, .num_experts = 20};
  OverrideExperts(router, 64, 17, once);
  OverrideExperts(router, 64, 17, again);
  OverrideExperts(router, 64, 18, other);
  EXPECT_EQ(once, again);
  EXPECT_NE(once, other);
}

TEST(RouterOverride, ExpertsAreChosenWithTheirShares) {
  const std::vector<double> shares = {1, 0.75, 0, 0.1, 0.4, 0.25, 0.3, 0.2};  // three of a token
  std::vector<int> counts(shares.size(), 0);
  int together = 0;
  for (int token = 0; token < kTokens; ++token) {
    std::vector<int32_t> experts(3, -1);
    ChooseByShares(shares, static_cast<uint64_t>(token), experts);
    EXPECT_TRUE(std::is_sorted(experts.begin(), experts.end()));
    EXPECT_EQ(std::set<int32_t>(experts.begin(), experts.end()).size(), 3u);
    for (const int32_t expert : experts) ++counts[expert];
    together += std::ranges::count(experts, 4) + std::ranges::count(experts, 6) == 2;
  }
  for (size_t i = 0; i < shares.size(); ++i) {
    const double deviation = std::sqrt(shares[i] * (1 - shares[i]) / kTokens);
    EXPECT_NEAR(counts[i] / double{kTokens}, shares[i], 5 * deviation) << i;
  }
  EXPECT_GT(together, 0);  // neighbours in their numbers are none on the line
}

TEST(RouterOverride, SharesOfTooFewExpertsAreFilledUp) {
  for (uint64_t token = 0; token < 100; ++token) {
    std::vector<int32_t> experts(3, -1);
    ChooseByShares(std::vector<double>{0, 1, 0, 0}, token, experts);
    EXPECT_EQ(std::set<int32_t>(experts.begin(), experts.end()).size(), 3u);
    EXPECT_TRUE(std::ranges::count(experts, 1) == 1);
  }
}

TEST(RouterOverrideDeathTest, NeedsAsManyExpertsAsATokenVisits) {
  std::vector<int32_t> experts(4);
  EXPECT_DEATH(OverrideExperts({.skew = 0.5, .num_experts = 3}, 64, 1, experts), "3 of 64 experts");
  EXPECT_DEATH(OverrideExperts({.skew = 0.5, .num_experts = 65}, 64, 1, experts), "65 of 64");
}

}  // namespace
}  // namespace convene::runtime
