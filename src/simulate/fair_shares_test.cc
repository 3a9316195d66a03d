#include "simulate/fair_shares.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>

namespace convene::simulate {
namespace {

using cost::Prices;

// Resources with a rate of 1 each, and activities by their demands of them.
Prices Unit(int num_resources, const std::vector<std::vector<double>>& activities) {
  Prices prices;
  for (int i = 0; i < num_resources; ++i) {
    prices.resources.push_back({.name = "resource", .rate = cost::ConstantRate(1)});
  }
  prices.first_demand.push_back(0);
  for (const std::vector<double>& amounts : activities) {
    for (int i = 0; i < num_resources; ++i) {
      if (amounts[i] > 0) prices.demands.push_back({.resource = i, .amount = amounts[i]});
    }
    prices.first_demand.push_back(static_cast<int32_t>(prices.demands.size()));
    prices.fixed_seconds.push_back(0);
  }
  return prices;
}

TEST(FairShares, AloneAnActivityIsAsFastAsItsSlowestDemandAllows) {
  const Prices prices = Unit(2, {{1, 4}});
  FairShares shares(prices);
  std::vector<int> changed;
  shares.Begin(0);
  shares.Solve(changed);
  EXPECT_THAT(changed, testing::ElementsAre(0));
  EXPECT_DOUBLE_EQ(shares.speed(0), 0.25);
}

TEST(FairShares, OnlyThoseWhoShareAContendedResourceAreLookedAtAgain) {
  // 0 and 1 meet at the first resource; 2 has the second one for itself; 3 and 2 do not fill it.
  const Prices prices = Unit(3, {{1, 0, 0}, {1, 0, 0}, {0, 0.5, 1}, {0, 0.5, 0}});
  FairShares shares(prices);
  std::vector<int> changed;
  shares.Begin(0);
  shares.Solve(changed);
  shares.Begin(2);
  shares.Solve(changed);
  EXPECT_THAT(changed, testing::ElementsAre(2));
  shares.Begin(1);
  shares.Solve(changed);
  EXPECT_THAT(changed, testing::UnorderedElementsAre(0, 1));
  EXPECT_DOUBLE_EQ(shares.speed(0), 0.5);
  shares.End(1);
  shares.Solve(changed);
  EXPECT_THAT(changed, testing::ElementsAre(0));
  EXPECT_DOUBLE_EQ(shares.speed(0), 1);
}

TEST(FairShares, ThoseWhoHoldEachOtherBackTwiceUseBothUp) {
  // v0 + 0.9 v1 = 0.9 v0 + v1 = 1.
  const Prices prices = Unit(2, {{1, 0.9}, {0.9, 1}});
  FairShares shares(prices);
  std::vector<int> changed;
  shares.Begin(0);
  shares.Solve(changed);
  shares.Begin(1);
  shares.Solve(changed);
  EXPECT_NEAR(shares.speed(0), 1 / 1.9, 1e-6);
  EXPECT_NEAR(shares.speed(1), 1 / 1.9, 1e-6);
}

TEST(FairShares, NothingIsUsedBeyondItsRateNorLeftThatCouldBeUsed) {
  std::mt19937 random(8);
  std::uniform_real_distribution<double> amount(-1, 1);  // half of the demands are not there
  for (int round = 0; round < 300; ++round) {
    constexpr int kResources = 4;
    constexpr int kActivities = 6;
    std::vector<std::vector<double>> demands(kActivities, std::vector<double>(kResources));
    for (std::vector<double>& amounts : demands) {
      for (double& value : amounts) value = amount(random);
      amounts[round % kResources] = 0.5;  // so that none asks for nothing
    }
    const Prices prices = Unit(kResources, demands);
    FairShares shares(prices);
    std::vector<int> changed;
    for (int i = 0; i < kActivities; ++i) shares.Begin(i);
    shares.Solve(changed);
    shares.End(2);
    shares.Solve(changed);

    std::vector<double> used(kResources, 0);
    for (int i = 0; i < kActivities; ++i) {
      for (const cost::Demand& demand : prices.demands_of(i)) {
        if (i != 2) used[demand.resource] += demand.amount * shares.speed(i);
      }
    }
    for (const double use : used) ASSERT_LE(use, 1 + 1e-9);
    for (int i = 0; i < kActivities; ++i) {
      if (i == 2) continue;
      bool bound = false;
      for (const cost::Demand& demand : prices.demands_of(i)) {
        bound =
            bound || used[demand.resource] > 1 - 1e-9 || shares.speed(i) * demand.amount > 1 - 1e-9;
      }
      ASSERT_TRUE(bound) << "activity " << i << " of round " << round << " could be faster";
    }
  }
}

}  // namespace
}  // namespace convene::simulate
