#include "planner/drawn_sizes.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <set>
#include <vector>

namespace convene::planner {
namespace {

using schedule::Size;
using schedule::SizeKind;

cost::ExpectedSizes Expected(const strategy::Roles& roles, const cost::ExpertShares& shares,
                             int top_k, double rows) {
  cost::ExpectedRouting routing{.top_k = top_k, .shares = {shares}, .experts = {}};
  for (int rank = 0; rank < roles.num_ranks(); ++rank) {
    const strategy::Part part = roles.ExpertsOf(rank, static_cast<int>(shares.size()));
    routing.experts.push_back(cost::CutIntoChunks(part.first, {part.size}));
    routing.rows.push_back(rows);
  }
  return cost::ExpectedSizes(std::move(routing));
}

// Of 64 experts the first 8 have 90 % of the visits.
cost::ExpertShares StatedSkew(int top_k) {
  std::vector<double> counts(64, 0.1 / 56);
  std::fill_n(counts.begin(), 8, 0.9 / 8);
  return cost::SharesFromCounts(counts, top_k);
}

cost::ExpertShares Zipf(int num_experts, int top_k) {
  std::vector<double> counts;
  for (int i = 1; i <= num_experts; ++i) counts.push_back(1.0 / i);
  return cost::SharesFromCounts(counts, top_k);
}

TEST(RoutingDraw, ExpertsAreDrawnAsOftenAsTheirSharesSayAndARowsAreDifferent) {
  constexpr int kRows = 20'000;
  struct Case {
    cost::ExpertShares shares;
    int top_k;
  };
  for (const auto& [shares, top_k] :
       {Case{cost::UniformShares(64, 8), 8}, Case{StatedSkew(8), 8}, Case{StatedSkew(1), 1},
        Case{Zipf(64, 8), 8}, Case{Zipf(16, 2), 2}, Case{cost::UniformShares(4, 4), 4},
        // A share of 1 and one of 0.
        Case{cost::SharesFromCounts({9, 2, 1, 0}, 2), 2}}) {
    RoutingDraw draw(Expected({}, shares, top_k, 1).set_odds(0), top_k, 7);
    std::vector<double> counts(shares.size(), 0);
    for (int row = 0; row < kRows; ++row) {
      const std::vector<int>& experts = draw.NextExperts();
      ASSERT_EQ(experts.size(), static_cast<size_t>(top_k));
      ASSERT_EQ(std::set<int>(experts.begin(), experts.end()).size(), experts.size());
      for (const int expert : experts) ++counts[static_cast<size_t>(expert)];
    }
    for (size_t expert = 0; expert < shares.size(); ++expert) {
      const double share = shares[expert];
      // Of 220 counts one in a thousand runs would be further off than 4.5 times its deviation.
      EXPECT_NEAR(counts[expert] / kRows, share,
                  4.5 * std::sqrt(share * (1 - std::min(1.0, share)) / kRows) + 1e-9)
          << "expert " << expert << " of " << shares.size();
    }
  }
}

TEST(RoutingDraw, ExpertsWithoutAnyVisitsStayWithoutThem) {
  // Two experts for a row, and only one that is ever visited.
  RoutingDraw draw(Expected({}, cost::SharesFromCounts({5, 0}, 2), 2, 1).set_odds(0), 2, 1);
  for (int row = 0; row < 100; ++row) EXPECT_EQ(draw.NextExperts(), std::vector<int>{0});
}

TEST(RoutingDraw, ThereAreNoDrawsWhereRanksAreAlike) {
  const strategy::Roles whole(strategy::Layout{.attention_dp = 8, .expert_ep = 8});
  const strategy::Roles sliced(strategy::Layout{.attention_dp = 8, .expert_tp = 8});
  EXPECT_EQ(NumRoutingDraws(0, 8, whole), 0);
  EXPECT_EQ(NumRoutingDraws(8, 8, sliced), 0);
  EXPECT_GT(NumRoutingDraws(8, 8, whole), 0);
  EXPECT_GT(NumRoutingDraws(512, 8, whole), 0);
  EXPECT_EQ(NumRoutingDraws(1e5, 8, whole), 0);
  EXPECT_EQ(NumRoutingDraws(512, 8, strategy::Layout{.attention_dp = 2, .expert_ep = 2}), 0);
}

TEST(DrawnSizes, TheirMeanIsWhatIsExpectedAndTheMostIsMore) {
  const strategy::Roles roles(strategy::Layout{.attention_dp = 4, .expert_ep = 4});
  const cost::ExpertShares shares = cost::UniformShares(16, 2);
  const cost::ExpectedSizes expected = Expected(roles, shares, 2, 3);
  const Size slots{.kind = SizeKind::kSlots, .layer = 0, .chunk = 0, .from = 1};
  const Size experts{.kind = SizeKind::kExperts, .layer = 0, .chunk = 0, .from = 1};
  const Size sent{.kind = SizeKind::kSent, .layer = 0, .chunk = 0, .from = 2, .to = 1};
  double mean_slots = 0;
  double mean_experts = 0;
  double mean_sent = 0;
  double mean_most = 0;
  constexpr int kDraws = 2000;
  for (int seed = 0; seed < kDraws; ++seed) {
    const DrawnSizes drawn(expected, roles, shares, 2, static_cast<uint32_t>(seed));
    double sum = 0;
    double most = 0;
    for (int rank = 0; rank < 4; ++rank) {
      const double of_rank = drawn.at({.kind = SizeKind::kSlots, .layer = 0, .from = rank});
      sum += of_rank;
      most = std::max(most, of_rank);
    }
    EXPECT_EQ(sum, 4 * 3 * 2);
    mean_most += most / kDraws;
    mean_slots += drawn.at(slots) / kDraws;
    mean_experts += drawn.at(experts) / kDraws;
    mean_sent += drawn.at(sent) / kDraws;
  }
  EXPECT_NEAR(mean_slots, expected.at(slots), 0.05 * expected.at(slots));
  EXPECT_NEAR(mean_experts, expected.at(experts), 0.05 * expected.at(experts));
  EXPECT_NEAR(mean_sent, expected.at(sent), 0.05 * expected.at(sent));
  EXPECT_GT(mean_most, 1.2 * mean_slots);
}

TEST(DrawnSizes, OfSkewedSharesTheMeanIsWhatIsExpected) {
  const strategy::Roles roles(strategy::Layout{.attention_dp = 2, .expert_ep = 2});
  for (const cost::ExpertShares& shares : {StatedSkew(8), Zipf(64, 8)}) {
    for (const double rows : {4.0, 400.0}) {  // the latter are not all drawn
      const cost::ExpectedSizes expected = Expected(roles, shares, 8, rows);
      for (const Size& size : {Size{.kind = SizeKind::kSlots, .layer = 0, .from = 0},
                               Size{.kind = SizeKind::kSlots, .layer = 0, .from = 1},
                               Size{.kind = SizeKind::kExperts, .layer = 0, .from = 0},
                               Size{.kind = SizeKind::kExperts, .layer = 0, .from = 1},
                               Size{.kind = SizeKind::kSent, .layer = 0, .from = 1, .to = 0},
                               Size{.kind = SizeKind::kSent, .layer = 0, .from = 0, .to = 1}}) {
        double mean = 0;
        constexpr int kDraws = 1000;
        for (uint32_t seed = 0; seed < kDraws; ++seed) {
          mean += DrawnSizes(expected, roles, shares, 8, seed).at(size) / kDraws;
        }
        EXPECT_NEAR(mean, expected.at(size), 0.02 * expected.at(size))
            << static_cast<int>(size.kind) << " from " << size.from << " of " << rows;
      }
    }
  }
}

TEST(DrawnSizes, ManyRowsScatterAsIfAllWereDrawn) {
  const strategy::Roles roles(strategy::Layout{.attention_dp = 2, .expert_ep = 2});
  const cost::ExpertShares shares = cost::SharesFromCounts({3, 1, 1, 5}, 1);
  constexpr double kRows = 10'000;  // of each rank, of which about 500 are drawn
  const cost::ExpectedSizes expected = Expected(roles, shares, 1, kRows);
  const auto scatter = [&](const Size& size) {
    double squares = 0;
    constexpr int kDraws = 1000;
    for (uint32_t seed = 0; seed < kDraws; ++seed) {
      const double off = DrawnSizes(expected, roles, shares, 1, seed).at(size) - expected.at(size);
      squares += off * off / kDraws;
    }
    return std::sqrt(squares);
  };
  // A row visits rank 0 with a probability of 0.4.
  const double of_rank = std::sqrt(kRows * 0.4 * 0.6);
  EXPECT_NEAR(scatter({.kind = SizeKind::kSlots, .layer = 0, .from = 0}), std::sqrt(2) * of_rank,
              0.1 * of_rank);
  EXPECT_NEAR(scatter({.kind = SizeKind::kSent, .layer = 0, .from = 1, .to = 0}), of_rank,
              0.1 * of_rank);
  EXPECT_EQ(scatter({.kind = SizeKind::kExperts, .layer = 0, .from = 0}), 0);
}

TEST(DrawnSizes, ChunksHavePartsOfWhatIsDrawn) {
  const strategy::Roles roles(strategy::Layout{.attention_dp = 2, .expert_ep = 2});
  const cost::ExpertShares shares = cost::UniformShares(8, 2);
  cost::ExpectedRouting routing{
      .top_k = 2,
      .shares = {shares},
      .experts = {cost::CutIntoChunks(0, {1, 4}), cost::CutIntoChunks(4, {1, 4})},
      .rows = {3, 3}};
  const cost::ExpectedSizes expected(routing);
  const DrawnSizes drawn(expected, roles, shares, 2, 1);
  for (const SizeKind kind : {SizeKind::kSlots, SizeKind::kExperts, SizeKind::kSent}) {
    Size size{.kind = kind, .layer = 0, .from = 0, .to = 1};
    const double whole = drawn.at(size);
    EXPECT_EQ(whole, std::round(whole));
    double sum = 0;
    for (size.chunk = 0; size.chunk < 2; ++size.chunk) sum += drawn.at(size);
    EXPECT_NEAR(sum, whole, 1e-9);
  }
}

TEST(DrawnSizes, WithSlicesOfAllExpertsEveryRankHasTheSame) {
  const strategy::Roles roles(strategy::Layout{.attention_dp = 4, .expert_tp = 4});
  const cost::ExpertShares shares = cost::UniformShares(8, 2);
  const cost::ExpectedSizes expected = Expected(roles, shares, 2, 5);
  const DrawnSizes drawn(expected, roles, shares, 2, 1);
  for (int rank = 0; rank < 4; ++rank) {
    EXPECT_EQ(drawn.at({.kind = SizeKind::kSlots, .layer = 0, .from = rank}), 4 * 5 * 2);
    EXPECT_EQ(drawn.at({.kind = SizeKind::kSent, .layer = 0, .from = 0, .to = rank}), 5);
    EXPECT_EQ(drawn.at({.kind = SizeKind::kReturned, .layer = 0, .from = rank, .to = 0}), 5);
    EXPECT_EQ(drawn.at({.kind = SizeKind::kRows, .from = rank}), 5);
  }
}

}  // namespace
}  // namespace convene::planner
