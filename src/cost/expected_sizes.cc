#include "cost/expected_sizes.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <numeric>

namespace convene::cost {
namespace {

using schedule::Size;
using schedule::SizeKind;

// Entry i: the sum over all sets of i experts of the product of their odds.
using SetSums = std::vector<double>;

void AddExpert(double odds, SetSums& sums) {
  for (size_t i = sums.size() - 1; i > 0; --i) sums[i] += sums[i - 1] * odds;
}

SetSums NoExperts(int top_k) {
  SetSums sums(top_k + 1, 0);
  sums[0] = 1;
  return sums;
}

// How likely a token visits none of some experts, where sets of top_k experts are as likely as the
// product of their odds (conditional Poisson sampling).
class Avoidance {
 public:
  Avoidance(const ExpertShares& shares, int top_k) : top_k_(top_k) {
    is_even_ = std::ranges::all_of(shares, [&](double share) { return share == shares.front(); });
    if (is_even_) {
      odds_.assign(shares.size(), 1);
      return;
    }
    for (const double share : shares) {
      const double below_one = std::min(share, 1 - 1e-6);
      odds_.push_back(below_one / (1 - below_one));
    }
    FitOdds(shares);
    all_ = SumWithout(std::vector<bool>(shares.size(), false));
  }

  const std::vector<double>& odds() const { return odds_; }

  double operator()(const std::vector<bool>& avoided) const {
    if (is_even_) return OfAsManySets(avoided);
    return all_ > 0 ? SumWithout(avoided) / all_ : 1;
  }

 private:
  // The share of the sets of top_k experts that have none of the avoided ones.
  double OfAsManySets(const std::vector<bool>& avoided) const {
    const auto all = static_cast<double>(avoided.size());
    const auto others = static_cast<double>(std::ranges::count(avoided, false));
    double share = 1;
    for (int chosen = 0; chosen < top_k_; ++chosen) {
      share *= std::max(0.0, others - chosen) / (all - chosen);
    }
    return share;
  }

  double SumWithout(const std::vector<bool>& avoided) const {
    SetSums sums = NoExperts(top_k_);
    for (size_t i = 0; i < odds_.size(); ++i) {
      if (!avoided[i]) AddExpert(odds_[i], sums);
    }
    return sums.back();
  }

  // Changes the odds until they give the shares.
  void FitOdds(const ExpertShares& shares) {
    constexpr int kMaxTurns = 100;
    double error = 1;
    for (int turn = 0; error > 1e-6 && turn < kMaxTurns; ++turn) {
      const double most = *std::max_element(odds_.begin(), odds_.end());
      if (!(most > 0)) return;
      for (double& odds : odds_) odds /= most;  // only their ratios count
      const std::vector<double> given = SharesGiven();
      error = 0;
      for (size_t i = 0; i < odds_.size(); ++i) {
        if (given[i] <= 0) continue;
        const double wanted = std::min(shares[i], 1 - 1e-6);
        odds_[i] *= wanted / given[i];
        error = std::max(error, std::abs(given[i] - wanted));
      }
    }
  }

  std::vector<double> SharesGiven() const {
    const size_t num_experts = odds_.size();
    std::vector<SetSums> after(num_experts + 1, NoExperts(top_k_));  // of experts from i on
    for (size_t i = num_experts; i-- > 0;) {
      after[i] = after[i + 1];
      AddExpert(odds_[i], after[i]);
    }
    std::vector<double> given;
    SetSums before = NoExperts(top_k_);
    for (size_t i = 0; i < num_experts; ++i) {
      double without = 0;  // the sum of sets of top_k - 1 others
      for (int k = 0; k < top_k_; ++k) without += before[k] * after[i + 1][top_k_ - 1 - k];
      given.push_back(after[0].back() > 0 ? odds_[i] * without / after[0].back() : 0);
      AddExpert(odds_[i], before);
    }
    return given;
  }

  int top_k_;
  bool is_even_ = false;
  std::vector<double> odds_;
  double all_ = 0;
};

// By chunk how likely the first visit to the rank is in it, chunks taken from begin to end.
template <typename Iterator>
std::vector<double> FirstVisits(const Avoidance& avoidance, size_t num_experts, Iterator begin,
                                Iterator end) {
  std::vector<bool> so_far(num_experts, false);
  double none = 1;
  std::vector<double> first;
  for (Iterator chunk = begin; chunk != end; ++chunk) {
    for (const int expert : *chunk) so_far.at(expert) = true;
    const double still_none = avoidance(so_far);
    first.push_back(none - still_none);
    none = still_none;
  }
  return first;
}

}  // namespace

ExpertShares UniformShares(int num_experts, int top_k) {
  return ExpertShares(num_experts, static_cast<double>(top_k) / num_experts);
}

ExpertShares SharesFromCounts(const std::vector<double>& counts, int top_k) {
  ExpertShares shares(counts.size(), 0);
  double open = std::min<double>(top_k, static_cast<double>(counts.size()));
  std::vector<bool> full(counts.size(), false);
  for (bool again = true; again;) {
    again = false;
    double sum = 0;
    for (size_t i = 0; i < counts.size(); ++i) sum += full[i] ? 0 : counts[i];
    if (sum <= 0) break;
    const double scale = open / sum;
    for (size_t i = 0; i < counts.size(); ++i) {
      if (full[i]) continue;
      shares[i] = counts[i] * scale;
      if (shares[i] < 1) continue;
      shares[i] = 1;
      full[i] = true;
      open -= 1;
      again = true;
    }
  }
  return shares;
}

Result<std::vector<std::vector<double>>> RouterCountsFromJson(const nlohmann::json& object) {
  const auto layers = object.is_object() ? object.find("layers") : object.end();
  if (layers == object.end() || !layers->is_array() || layers->empty()) {
    return Error{"router statistics have no list \"layers\""};
  }
  std::vector<std::vector<double>> counts;
  for (const nlohmann::json& layer : *layers) {
    const auto experts = layer.is_object() ? layer.find("experts") : layer.end();
    if (experts == layer.end() || !experts->is_array()) {
      return Error{
          fmt::format("layer {} of the router statistics has no list \"experts\"", counts.size())};
    }
    std::vector<double> of_layer;
    for (const nlohmann::json& count : *experts) {
      if (!count.is_number() || !(count.get<double>() >= 0)) {
        return Error{fmt::format(
            "layer {} of the router statistics has a count that is not a number from 0 on",
            counts.size())};
      }
      of_layer.push_back(count.get<double>());
    }
    const bool has_tokens = std::accumulate(of_layer.begin(), of_layer.end(), 0.0) > 0;
    if (!of_layer.empty() && !has_tokens) {
      return Error{fmt::format("layer {} of the router statistics has no tokens", counts.size())};
    }
    counts.push_back(std::move(of_layer));
  }
  return counts;
}

std::vector<std::vector<int>> CutIntoChunks(int first, const std::vector<int>& ends) {
  std::vector<std::vector<int>> experts;
  int next = 0;
  for (const int end : ends) {
    std::vector<int>& chunk = experts.emplace_back();
    for (; next < end; ++next) chunk.push_back(first + next);
  }
  return experts;
}

ExpectedSizes::ExpectedSizes(ExpectedRouting routing) : routing_(std::move(routing)) {
  if (routing_.tokens.empty()) routing_.tokens = routing_.rows;
  for (const ExpertShares& shares : routing_.shares) {
    if (shares.empty()) {
      odds_.emplace_back();  // a layer without experts
      set_odds_.emplace_back();
      continue;
    }
    const Avoidance avoidance(shares, routing_.top_k);
    set_odds_.push_back(avoidance.odds());
    std::vector<RankOdds>& of_layer = odds_.emplace_back();
    for (const auto& chunks : routing_.experts) {
      RankOdds odds;
      odds.first = FirstVisits(avoidance, shares.size(), chunks.begin(), chunks.end());
      odds.last = FirstVisits(avoidance, shares.size(), chunks.rbegin(), chunks.rend());
      std::reverse(odds.last.begin(), odds.last.end());
      odds.any = std::accumulate(odds.first.begin(), odds.first.end(), 0.0);
      of_layer.push_back(std::move(odds));
    }
  }
}

const ExpertShares& ExpectedSizes::shares(int layer) const {
  CHECK(!routing_.shares.empty() && (routing_.shares.size() == 1 || layer >= 0));
  return routing_.shares.size() == 1 ? routing_.shares[0] : routing_.shares.at(layer);
}

double ExpectedSizes::at(const Size& size) const {
  switch (size.kind) {
    case SizeKind::kOne:
      return 1;
    case SizeKind::kRows:
      return Part(routing_.rows, size.from, size);
    case SizeKind::kTokens:
      return size.wanted ? AttentionAt(size) : Part(routing_.tokens, size.from, size);
    case SizeKind::kKeys:
    case SizeKind::kCached:
    case SizeKind::kExpandedTokens:
    case SizeKind::kExpandedKeys:
    case SizeKind::kExpandedCached:
    case SizeKind::kInputKeys:
    case SizeKind::kInputCached:
      return AttentionAt(size);
    case SizeKind::kWanted:
      return Part(routing_.wanted, size.from, size);
    case SizeKind::kSent:
      return Returned(size, true);
    case SizeKind::kReturned:
      return Returned(size, false);
    case SizeKind::kSlots:
      return Slots(size);
    case SizeKind::kExperts:
      return Experts(size);
  }
  return 0;
}

bool ExpectedSizes::is_cut() const {
  return routing_.micro_batches > 1 || routing_.token_chunks > 1 ||
         std::ranges::any_of(routing_.experts,
                             [](const auto& chunks) { return chunks.size() > 1; });
}

const std::vector<double>& ExpectedSizes::set_odds(int layer) const {
  return set_odds_.size() == 1 ? set_odds_[0] : set_odds_.at(layer);
}

double ExpectedSizes::Part(const std::vector<double>& by_rank, int rank, const Size& size) const {
  const double all = rank >= 0 && rank < static_cast<int>(by_rank.size()) ? by_rank[rank] : 0;
  return size.micro_batch < 0 ? all : all / routing_.micro_batches;
}

double ExpectedSizes::AttentionAt(const Size& size) const {
  if (!routing_.attention) return 0;
  Size whole = size;
  whole.micro_batch = -1;
  const double all = routing_.attention(whole);
  return size.micro_batch < 0 ? all : all / routing_.micro_batches;
}

double ExpectedSizes::RoutedRows(int rank, const Size& size) const {
  const bool is_pruned = size.layer >= 0 && size.layer == routing_.pruned_layer;
  const std::vector<double>& rows = is_pruned ? routing_.wanted : routing_.rows;
  if (rank < 0 && routing_.rows_pass_through) rank = size.from;
  if (rank >= 0) return Part(rows, rank, size);
  double sum = 0;
  for (int each = 0; each < static_cast<int>(rows.size()); ++each) sum += Part(rows, each, size);
  return sum;
}

double ExpectedSizes::Returned(const Size& size, bool sent) const {
  const int owner = sent ? size.from : size.to;
  const int visited = sent ? size.to : size.from;
  const size_t entry = routing_.shares.size() == 1 ? 0 : static_cast<size_t>(size.layer);
  const RankOdds& odds = odds_.at(entry).at(visited);
  const double rows = RoutedRows(owner, size);
  if (size.chunk < 0) return rows * odds.any;
  if (routing_.token_chunks > 1) return rows * odds.any / routing_.token_chunks;
  return rows * (sent ? odds.first : odds.last).at(size.chunk);
}

// The rows whose visits to rank `size.from` are computed in the chunk.
double ExpectedSizes::RowsAt(const Size& size) const {
  const double all = RoutedRows(-1, size);
  if (size.chunk < 0 || routing_.token_chunks <= 1) return all;
  const double own = RoutedRows(size.from, size);
  return size.chunk < routing_.token_chunks ? (all - own) / routing_.token_chunks : own / 2;
}

double ExpectedSizes::Slots(const Size& size) const {
  const ExpertShares& of_layer = shares(size.layer);
  const bool by_tokens = size.chunk >= 0 && routing_.token_chunks > 1;
  const auto& chunks = routing_.experts.at(size.from);
  double visits = 0;  // of a token
  for (int chunk = 0; chunk < static_cast<int>(chunks.size()); ++chunk) {
    if (size.chunk >= 0 && !by_tokens && chunk != size.chunk) continue;
    for (const int expert : chunks[chunk]) visits += of_layer[expert];
  }
  return visits * RowsAt(size);
}

double ExpectedSizes::Experts(const Size& size) const {
  const ExpertShares& of_layer = shares(size.layer);
  const bool by_tokens = size.chunk >= 0 && routing_.token_chunks > 1;
  const double num_tokens = RowsAt(size);
  const auto& chunks = routing_.experts.at(size.from);
  double activated = 0;
  for (int chunk = 0; chunk < static_cast<int>(chunks.size()); ++chunk) {
    if (size.chunk >= 0 && !by_tokens && chunk != size.chunk) continue;
    for (const int expert : chunks[chunk]) {
      activated += 1 - std::pow(1 - of_layer[expert], num_tokens);
    }
  }
  return activated;
}

}  // namespace convene::cost
