#include "planner/share_pass.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <utility>

#include "planner/layer_shapes.h"

namespace convene::planner {
namespace {

// By share of the layout: the slowest of its ranks.
std::vector<double> FactorsOfShares(const strategy::Layout& layout,
                                    std::span<const double> rank_factors) {
  std::vector<double> factors(static_cast<size_t>(layout.expert_ep), 0);
  const strategy::Roles roles = layout;
  for (int rank = 0; rank < layout.num_ranks(); ++rank) {
    const auto& experts = roles.of(rank).experts;
    if (!experts) continue;
    double& slowest = factors[static_cast<size_t>(experts->share)];
    slowest = std::max(slowest, rank_factors[static_cast<size_t>(rank)]);
  }
  return factors;
}

// Of layers that are divided: as many for each rank as it is fast.
void AddUnequalStages(PlanSearch& search, const Candidate& alike) {
  const auto num_layers = static_cast<int>(search.question().spec.layers.size());
  const strategy::Layout& layout = alike.plan.layout;
  if (layout.stages > num_layers || !layout.stage_weights.empty()) return;
  const std::vector<double> factors = search.question().source.RankFactorsOf(alike.setup);
  if (std::ssize(factors) != layout.stages) return;
  const std::vector<int> shares = SharesByRate(factors, num_layers);
  if (std::ranges::count(shares, shares.front()) == std::ssize(shares)) return;
  Candidate candidate = alike;
  candidate.plan.layout.stage_weights = shares;
  search.Add(std::move(candidate));
}

}  // namespace

std::vector<int> SharesByRate(std::span<const double> factors, int num_experts) {
  double sum = 0;
  for (const double factor : factors) sum += 1 / factor;
  // The largest remainders get what rounding down leaves.
  std::vector<int> shares;
  std::vector<std::pair<double, size_t>> remainders;
  int given = 0;
  for (size_t i = 0; i < factors.size(); ++i) {
    const double exact = num_experts / factors[i] / sum;
    shares.push_back(std::max(1, static_cast<int>(std::floor(exact))));
    given += shares.back();
    remainders.emplace_back(shares.back() - exact, i);
  }
  std::ranges::sort(remainders);
  for (size_t i = 0; given < num_experts; ++given, ++i) {
    ++shares[remainders[i % remainders.size()].second];
  }
  int divisor = 0;
  for (const int share : shares) divisor = std::gcd(divisor, share);
  for (int& share : shares) share /= std::max(1, divisor);
  return shares;
}

void AddUnequalShares(PlanSearch& search) {
  const PlanQuestion& question = search.question();
  if (question.constraints.layout) return;
  const int num_experts = FewestExperts(question.spec);
  const size_t count = search.candidates().size();
  for (size_t i = 0; i < count; ++i) {
    const Candidate alike = search.candidates()[i];
    const strategy::Layout& layout = alike.plan.layout;
    if (!alike.rejected_by.empty() || alike.plan.decode) continue;
    if (layout.stages > 1) AddUnequalStages(search, alike);
    if (layout.expert_ep < 2) continue;
    if (layout.expert_ep > num_experts || !layout.expert_weights.empty()) continue;
    const std::vector<double> factors = question.source.RankFactorsOf(alike.setup);
    if (std::ssize(factors) != layout.num_ranks()) continue;
    const std::vector<int> shares = SharesByRate(FactorsOfShares(layout, factors), num_experts);
    if (std::ranges::count(shares, shares.front()) == std::ssize(shares)) continue;
    Candidate candidate = alike;
    candidate.plan.layout.expert_weights = shares;
    search.Add(std::move(candidate));
  }
}

}  // namespace convene::planner
