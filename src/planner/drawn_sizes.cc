#include "planner/drawn_sizes.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <numeric>
#include <random>
#include <utility>

namespace convene::planner {

using schedule::Size;
using schedule::SizeKind;

DrawnSizes::DrawnSizes(const cost::ExpectedSizes& expected, const strategy::Roles& roles,
                       const cost::ExpertShares& shares, int top_k, uint32_t seed)
    : expected_(expected),
      num_ranks_(roles.num_ranks()),
      sent_(static_cast<size_t>(num_ranks_) * num_ranks_, 0),
      slots_(num_ranks_, 0),
      experts_(num_ranks_, 0) {
  const auto num_experts = static_cast<int>(shares.size());
  std::vector<std::vector<int>> ranks_of(num_experts);  // slices of an expert lie on several
  for (int rank = 0; rank < num_ranks_; ++rank) {
    const strategy::Part part = roles.ExpertsOf(rank, num_experts);
    for (int i = 0; i < part.size; ++i) ranks_of[part.first + i].push_back(rank);
  }
  const bool is_uniform =
      std::adjacent_find(shares.begin(), shares.end(), std::not_equal_to<>()) == shares.end();
  std::vector<int> order(num_experts);
  std::iota(order.begin(), order.end(), 0);
  std::mt19937 random(seed);
  std::vector<bool> is_visited(num_experts, false);
  std::vector<int> last_row(num_ranks_, -1);
  int row_number = 0;
  for (int from = 0; from < num_ranks_; ++from) {
    const auto num_rows =
        static_cast<int>(std::llround(expected.at({.kind = SizeKind::kRows, .from = from})));
    for (int row = 0; row < num_rows; ++row, ++row_number) {
      std::vector<double> odds = is_uniform ? cost::ExpertShares() : shares;
      for (int i = 0; i < std::min(top_k, num_experts); ++i) {
        int expert = 0;
        if (is_uniform) {  // a shuffle as far as it is needed
          std::uniform_int_distribution<int> draw(i, num_experts - 1);
          std::swap(order[i], order[draw(random)]);
          expert = order[i];
        } else {
          std::discrete_distribution<int> draw(odds.begin(), odds.end());
          expert = draw(random);
          odds[expert] = 0;
        }
        for (const int rank : ranks_of[expert]) {
          slots_[rank] += 1;
          if (!is_visited[expert]) experts_[rank] += 1;
          if (last_row[rank] != row_number) sent(from, rank) += 1;
          last_row[rank] = row_number;
        }
        is_visited[expert] = true;
      }
    }
  }
}

double DrawnSizes::at(const Size& size) const {
  switch (size.kind) {
    case SizeKind::kSent:
      return sent_[size.from * num_ranks_ + size.to];
    case SizeKind::kReturned:
      return sent_[size.to * num_ranks_ + size.from];
    case SizeKind::kSlots:
      return slots_[size.from];
    case SizeKind::kExperts:
      return experts_[size.from];
    default:
      return expected_.at(size);
  }
}

}  // namespace convene::planner
