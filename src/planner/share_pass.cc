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
  for (const auto& factors : RankFactors(search.question().source, alike.setup)) {
    if (std::ssize(factors) != layout.stages) continue;
    const std::vector<int> shares = SharesByRate(factors, num_layers);
    if (std::ranges::count(shares, shares.front()) == std::ssize(shares)) continue;
    Candidate candidate = alike;
    candidate.plan.layout.stage_weights = shares;
    search.Add(std::move(candidate));
  }
}

// Bytes of one expert of all layers.
double BytesOfExpert(const PlanQuestion& question, const Candidate& candidate) {
  double elements = 0;
  for (const auto* stack : {&question.spec.encoder_layers, &question.spec.layers}) {
    for (const model::LayerSpec& layer : *stack) {
      if (!layer.moe) continue;
      elements += (layer.moe->activation.gated() ? 3.0 : 2.0) * layer.moe->intermediate_size *
                  question.spec.hidden_size;
    }
  }
  return elements * question.bytes_of(candidate.setup.weights, candidate.plan.wire).weights;
}

// By rank the inverse of the memory that experts have there, so that shares go by that. What else a
// rank has is taken to be alike; none: ranks have as much memory, or one has none left.
std::vector<double> FactorsOfMemory(const PlanQuestion& question, const Candidate& alike) {
  const std::vector<uint64_t>& memory = question.rank_memory;
  const strategy::Layout& layout = alike.plan.layout;
  if (std::ssize(memory) != layout.num_ranks() || layout.expert_ep < 2) return {};
  const auto needed = question.memory_of(alike.setup, alike.plan, question.workload.batch);
  if (!needed) return {};
  const double share = std::ceil(double(FewestExperts(question.spec)) / layout.expert_ep);
  const double experts = share * BytesOfExpert(question, alike) / layout.expert_tp;
  const double rest = std::max(0.0, static_cast<double>(needed->total()) - experts);
  std::vector<double> factors;
  for (const uint64_t bytes : memory) {
    const double left = static_cast<double>(bytes) - rest;
    if (left <= 0) return {};
    factors.push_back(1 / left);
  }
  return factors;
}

}  // namespace

std::vector<std::vector<double>> RankFactors(const PricerSource& source, const RankSetup& setup) {
  const std::vector<cost::MachineState> states = source.RankStatesOf(setup);
  if (states.empty()) return {};
  std::vector<double> memory;
  std::vector<double> compute;
  for (const cost::MachineState& state : states) {
    memory.push_back(state.memory);
    compute.push_back(state.compute);
  }
  if (memory == compute) return {memory};
  return {memory, compute};
}

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
    std::vector<std::vector<double>> all = RankFactors(question.source, alike.setup);
    all.push_back(FactorsOfMemory(question, alike));
    for (const std::vector<double>& factors : all) {
      if (std::ssize(factors) != layout.num_ranks()) continue;
      const std::vector<int> shares = SharesByRate(FactorsOfShares(layout, factors), num_experts);
      if (std::ranges::count(shares, shares.front()) == std::ssize(shares)) continue;
      Candidate candidate = alike;
      candidate.plan.layout.expert_weights = shares;
      search.Add(std::move(candidate));
    }
  }
}

}  // namespace convene::planner
