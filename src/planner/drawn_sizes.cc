#include "planner/drawn_sizes.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <utility>

namespace convene::planner {
namespace {

using schedule::Size;
using schedule::SizeKind;

constexpr int kMostDraws = 8;
constexpr int kMostDrawsOfManyRanks = 4;
constexpr int kFewestDraws = 4;
constexpr int kManyRanks = 16;
// Of the experts' time; errors of prices are larger. As are those of a mean of so many draws, which
// the search takes most of its time for: the less ranks differ, the fewer suffice.
constexpr double kLeastExcess = 0.02;
constexpr double kDrawsByExcess = 16;
// More draws take time and say no more about how sums of many rows scatter.
constexpr double kMostDrawnVisits = 1024;

// Rows of a rank of which routings are drawn. A rank that has any draws at least one.
std::vector<int> RowsToDraw(const std::vector<double>& rows, int top_k) {
  double all = 0;
  for (const double of_rank : rows) all += of_rank;
  const double part = std::min(1.0, kMostDrawnVisits / std::max(1.0, all * top_k));
  std::vector<int> drawn;
  for (const double of_rank : rows) {
    drawn.push_back(static_cast<int>(std::ceil(of_rank * part - 1e-9)));
  }
  return drawn;
}

}  // namespace

int NumRoutingDraws(double num_rows, int top_k, const strategy::Roles& roles) {
  const double shares = roles.expert_split().num_shares();
  // Slices of all experts are alike on all ranks, whatever the routing.
  if (shares == 1 || !(num_rows > 0)) return 0;
  // The most of so many sums that are normal, as a part of their mean: a visit is to a share or
  // not.
  const double excess = std::sqrt(2 * std::log(shares) * (shares - 1) / (num_rows * top_k));
  if (excess < kLeastExcess) return 0;
  const int most = roles.num_ranks() > kManyRanks ? kMostDrawsOfManyRanks : kMostDraws;
  return std::clamp(static_cast<int>(std::min(1.0, excess) * kDrawsByExcess), kFewestDraws, most);
}

RoutingDraw::RoutingDraw(const std::vector<double>& odds, int top_k, uint32_t seed)
    : is_uniform_(std::ranges::adjacent_find(odds, std::not_equal_to<>()) == odds.end()),
      random_(seed) {
  for (int expert = 0; expert < static_cast<int>(odds.size()); ++expert) {
    if (odds[expert] > 0) order_.push_back(expert);
  }
  top_k_ = std::min(top_k, static_cast<int>(order_.size()));
  if (is_uniform_) return;
  std::ranges::stable_sort(order_, [&](int a, int b) { return odds[a] > odds[b]; });
  // Of each number of experts, sums of the products of all sets of those from i on (conditional
  // Poisson sampling: Chen, Dempster and Liu 1994).
  std::vector<double> sums(top_k_ + 1, 0);
  sums[0] = 1;
  taken_.assign(order_.size() * sums.size(), 0);
  for (size_t i = order_.size(); i-- > 0;) {
    const double own = odds[order_[i]];
    for (int missing = top_k_; missing > 0; --missing) {
      const double with = own * sums[missing - 1];
      sums[missing] += with;
      if (with > 0) taken(i, missing) = with / sums[missing];
    }
  }
}

const std::vector<int>& RoutingDraw::NextExperts() {
  chosen_.clear();
  if (is_uniform_) {  // a shuffle as far as it is needed
    for (int i = 0; i < top_k_; ++i) {
      const double others = static_cast<double>(order_.size()) - i;
      std::swap(order_[i], order_[i + static_cast<int>(Uniform() * others)]);
      chosen_.push_back(order_[i]);
    }
    return chosen_;
  }
  int missing = top_k_;
  for (size_t i = 0; missing > 0 && i < order_.size(); ++i) {
    if (!NextIs(taken(i, missing))) continue;
    chosen_.push_back(order_[i]);
    --missing;
  }
  return chosen_;
}

DrawnSizes::DrawnSizes(const cost::ExpectedSizes& expected, const strategy::Roles& roles,
                       const cost::ExpertShares& shares, int top_k, uint32_t seed)
    : expected_(expected),
      num_ranks_(roles.num_ranks()),
      sent_(static_cast<size_t>(num_ranks_) * num_ranks_, 0),
      slots_(num_ranks_, 0),
      experts_(num_ranks_, 0) {
  const auto num_experts = static_cast<int>(shares.size());
  std::vector<std::vector<int>> ranks_of(num_experts);  // slices of an expert lie on several
  std::vector<double> visits(num_ranks_, 0);            // of a row
  for (int rank = 0; rank < num_ranks_; ++rank) {
    const strategy::Part part = roles.ExpertsOf(rank, num_experts);
    for (int i = 0; i < part.size; ++i) {
      ranks_of[part.first + i].push_back(rank);
      visits[rank] += shares[part.first + i];
    }
  }
  std::vector<double> rows;
  double all_rows = 0;
  for (int from = 0; from < num_ranks_; ++from) {
    rows.push_back(std::round(expected.at({.kind = SizeKind::kRows, .from = from})));
    all_rows += rows.back();
  }
  const std::vector<int> to_draw = RowsToDraw(rows, top_k);
  RoutingDraw draw(expected.set_odds(0), top_k, seed);
  std::vector<bool> is_visited(num_experts, false);
  std::vector<int> last_row(num_ranks_, -1);
  int row_number = 0;
  bool are_all_drawn = true;
  for (int from = 0; from < num_ranks_; ++from) {
    if (to_draw[from] == 0) continue;
    are_all_drawn = are_all_drawn && to_draw[from] == rows[from];
    std::vector<double> slots(num_ranks_, 0);
    for (int row = 0; row < to_draw[from]; ++row, ++row_number) {
      for (const int expert : draw.NextExperts()) {
        for (const int rank : ranks_of[expert]) {
          slots[rank] += 1;
          if (last_row[rank] != row_number) sent(from, rank) += 1;
          last_row[rank] = row_number;
        }
        is_visited[expert] = true;
      }
    }
    // Sums of independent rows scatter by the root of how many these are; with all of them drawn
    // this changes nothing, and never is a sum below 0 or a row sent twice.
    const double spread = std::sqrt(rows[from] / to_draw[from]);
    const double of_mean = rows[from] - spread * to_draw[from];
    for (int rank = 0; rank < num_ranks_; ++rank) {
      slots_[rank] += spread * slots[rank] + of_mean * visits[rank];
      const double mean_sent =
          expected.at({.kind = SizeKind::kSent, .layer = 0, .from = from, .to = rank});
      sent(from, rank) = spread * sent(from, rank) + of_mean * mean_sent / rows[from];
    }
  }
  for (int expert = 0; expert < num_experts; ++expert) {
    // Of many rows, how often an expert is left out has next to nothing to do with the others.
    const bool is_active = are_all_drawn ? is_visited[expert]
                                         : draw.NextIs(1 - std::pow(1 - shares[expert], all_rows));
    if (!is_active) continue;
    for (const int rank : ranks_of[expert]) experts_[rank] += 1;
  }
}

double DrawnSizes::OfWholeStep(const Size& size) const {
  switch (size.kind) {
    case SizeKind::kSent:
      return sent_[size.from * num_ranks_ + size.to];
    case SizeKind::kReturned:
      return sent_[size.to * num_ranks_ + size.from];
    case SizeKind::kSlots:
      return slots_[size.from];
    default:
      return experts_[size.from];
  }
}

double DrawnSizes::at(const Size& size) const {
  const bool is_routed = size.kind == SizeKind::kSent || size.kind == SizeKind::kReturned ||
                         size.kind == SizeKind::kSlots || size.kind == SizeKind::kExperts;
  if (!is_routed) return expected_.at(size);
  const double drawn = OfWholeStep(size);
  if (!expected_.is_cut()) return drawn;
  Size whole = size;
  whole.chunk = -1;
  whole.micro_batch = -1;
  const double all = expected_.at(whole);
  return all > 0 ? drawn * expected_.at(size) / all : 0;
}

}  // namespace convene::planner
