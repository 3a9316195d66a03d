#include "planner/drawn_sizes.h"

#include <gtest/gtest.h>

#include <algorithm>

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
