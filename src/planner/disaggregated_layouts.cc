#include "planner/disaggregated_layouts.h"

#include <algorithm>
#include <map>
#include <memory>
#include <numeric>
#include <utility>

#include "planner/disaggregated_roles.h"
#include "planner/layer_shapes.h"
#include "planner/share_pass.h"

namespace convene::planner {
namespace {

using strategy::Layout;

// Numbers of attention ranks that are looked at, of more ranks than these have.
constexpr int kRanksOneByOne = 8;
constexpr int kParts = 8;
// Ranks that differ by less have the same rates: so much a machine wanders.
constexpr double kAlike = 0.1;
// Of ranks that all differ there are more divisions than anybody solves; then more count as alike.
constexpr int64_t kMostDivisions = 256;

std::vector<int> NumbersOfAttentionRanks(int num_ranks) {
  std::vector<int> numbers;
  const int parts = num_ranks <= kRanksOneByOne ? num_ranks : kParts;
  for (int part = 1; part < parts; ++part) numbers.push_back(num_ranks * part / parts);
  return numbers;
}

// Factors that differ by at most `alike` become the least of them.
std::vector<double> Together(const std::vector<double>& factors, double alike) {
  std::vector<double> sorted = factors;
  std::ranges::sort(sorted);
  std::map<double, double> of;
  double least = sorted.front();
  for (const double factor : sorted) {
    if (factor > least * (1 + alike)) least = factor;
    of[factor] = least;
  }
  std::vector<double> together;
  for (const double factor : factors) together.push_back(of.at(factor));
  return together;
}

int64_t NumDivisions(const std::vector<RankTraits>& ranks) {
  std::map<std::pair<double, double>, int64_t> counts;
  for (const RankTraits& rank : ranks) ++counts[{rank.machine.memory, rank.machine.compute}];
  int64_t divisions = 1;
  for (const auto& [machine, count] : counts) {
    divisions = std::min<int64_t>(divisions * (count + 1), kMostDivisions + 1);
  }
  return divisions;
}

std::vector<RankTraits> TraitsOf(const std::vector<cost::MachineState>& states) {
  std::vector<double> memory;
  std::vector<double> compute;
  for (const cost::MachineState& state : states) {
    memory.push_back(state.memory);
    compute.push_back(state.compute);
  }
  for (double alike = kAlike;; alike *= 2) {
    const std::vector<double> memories = Together(memory, alike);
    const std::vector<double> cores = Together(compute, alike);
    std::vector<RankTraits> ranks;
    for (size_t rank = 0; rank < states.size(); ++rank) {
      ranks.push_back({.machine = {.memory = memories[rank], .compute = cores[rank]}});
    }
    if (NumDivisions(ranks) <= kMostDivisions) return ranks;
  }
}

// Of the experts by the rates of those who have them; none: they are alike.
std::vector<int> WeightsOf(const Layout& layout, const std::vector<double>& rank_factors,
                           int num_experts) {
  if (std::ssize(rank_factors) != layout.num_ranks() || layout.expert_ep < 2) return {};
  const strategy::Roles roles = layout;
  std::vector<double> factors;
  for (int share = 0; share < layout.expert_ep; ++share) {
    factors.push_back(rank_factors[static_cast<size_t>(roles.RankOfSlice(share, 0))]);
  }
  const std::vector<int> weights = SharesByRate(factors, num_experts);
  const bool are_alike = std::ranges::count(weights, weights.front()) == std::ssize(weights);
  return are_alike ? std::vector<int>() : weights;
}

// The step of all groups together.
std::vector<strategy::SequenceRows> AllOf(const StepSequences& groups) {
  std::vector<strategy::SequenceRows> all;
  for (const auto& group : groups) all.insert(all.end(), group.begin(), group.end());
  return all;
}

// By number of attention ranks the ones that take least for the workload.
class SolvedRoles {
 public:
  SolvedRoles(const PlanQuestion& question, const RankSetup& setup)
      : question_(question), setup_(setup) {
    const std::vector<cost::MachineState> states = question.source.RankStatesOf(setup);
    if (std::ssize(states) != setup.num_ranks || states.empty()) return;
    ranks_ = TraitsOf(states);
    // As many groups as there can be attention ranks, so that each division has enough to do.
    const strategy::Roles roles =
        Layout{.attention_dp = setup.num_ranks - 1, .disaggregates = true};
    const TypicalSteps steps =
        TypicalStepsOf(question, roles.ExpandingFrom(question.expand_from_tokens));
    Add(AllOf(steps.prefill), steps.num_prefill);
    if (steps.num_decode > 0) Add(AllOf(steps.decode), steps.num_decode);
  }

  // None: the first ones will do.
  std::vector<int> AttentionRanks(int num_attention) const {
    const std::pair<const std::vector<int>, double>* best = nullptr;
    for (const auto& each : seconds_) {
      if (std::ssize(each.first) != num_attention) continue;
      if (best == nullptr || each.second < best->second) best = &each;
    }
    const bool are_first = best == nullptr || best->first.back() == num_attention - 1;
    return are_first ? std::vector<int>() : best->first;
  }

 private:
  void Add(std::vector<strategy::SequenceRows> sequences, double num_steps) {
    const Result<std::vector<RolesChoice>> choices = RankRoles(
        {.spec = question_.spec,
         .bytes = question_.bytes_of(setup_.weights,
                                     question_.constraints.wire.value_or(plan::Wire::kF32)),
         .shares = SharesOf(question_.workload.routing, question_.spec),
         .sequences = std::move(sequences),
         .ranks = ranks_,
         .pricer =
             [&](const cost::MachineState& state) {
               return question_.source.PricerOf(setup_, {.machine = state, .alike_ranks = true},
                                                /*comm_budget=*/0);
             },
         .most_micro_batches = kMostSolvedMicroBatches,
         .most_chunks = kMostSolvedChunks});
    if (!choices) return;
    for (const RolesChoice& choice : *choices) {
      seconds_[choice.attention] += num_steps * choice.seconds();
    }
  }

  const PlanQuestion& question_;
  const RankSetup& setup_;
  std::vector<RankTraits> ranks_;
  std::map<std::vector<int>, double> seconds_;  // of a batch, by attention ranks
};

// Attention where there is least memory, so that experts have the rest; none: the first ranks are
// those, or memories are alike.
std::vector<int> SmallestRanks(const PlanQuestion& question, int num_ranks, int count) {
  const std::vector<uint64_t>& memory = question.rank_memory;
  if (std::ssize(memory) != num_ranks) return {};
  std::vector<int> ranks(memory.size());
  std::iota(ranks.begin(), ranks.end(), 0);
  std::ranges::stable_sort(ranks, {}, [&](int rank) { return memory[static_cast<size_t>(rank)]; });
  ranks.resize(static_cast<size_t>(count));
  std::ranges::sort(ranks);
  return ranks.back() == count - 1 ? std::vector<int>() : ranks;
}

void AddDivisions(Layout layout, const std::vector<std::vector<double>>& all_factors,
                  int num_experts, std::vector<Layout>& layouts) {
  layouts.push_back(layout);
  for (const std::vector<double>& factors : all_factors) {
    layout.expert_weights = WeightsOf(layout, factors, num_experts);
    const bool is_new = std::ranges::find(layouts, layout) == layouts.end();
    if (!layout.expert_weights.empty() && is_new) layouts.push_back(layout);
  }
  if (layout.attention_dp == 1) return;
  layout.expert_weights.clear();
  std::swap(layout.attention_tp, layout.attention_dp);
  layouts.push_back(layout);
}

}  // namespace

TypicalSteps TypicalStepsOf(const PlanQuestion& question, const strategy::Roles& roles) {
  const Workload& workload = question.workload;
  TypicalSteps steps;
  const std::vector<TypicalStep> prefill =
      PrefillSteps(TypicalSequences(workload, workload.batch), roles, question.step_tokens);
  steps.prefill = prefill.back().groups;  // the one with the most rows
  for (const TypicalStep& step : prefill) {
    steps.num_prefill += step.count * static_cast<double>(NumTokens(step.groups)) /
                         static_cast<double>(NumTokens(steps.prefill));
  }
  steps.num_decode = workload.mean_gen_tokens() - 1;
  steps.decode = DecodeStep(workload.batch, std::max(1, static_cast<int>(workload.mean_context())),
                            static_cast<int>(workload.mean_prompt_tokens()), roles);
  return steps;
}

std::vector<Layout> DisaggregatedLayouts(const PlanQuestion& question, const RankSetup& setup) {
  if (const auto& wanted = question.constraints.layout) return {*wanted};
  const int num_experts = FewestExperts(question.spec);
  std::vector<std::vector<double>> factors = RankFactors(question.source, setup);
  if (std::ssize(question.rank_memory) == setup.num_ranks) {
    // Ranks with experts have little else.
    std::vector<double>& of_memory = factors.emplace_back();
    for (const uint64_t bytes : question.rank_memory) {
      of_memory.push_back(1 / std::max(1.0, static_cast<double>(bytes)));
    }
  }
  const SolvedRoles solved(question, setup);
  std::vector<Layout> layouts;
  for (const int attention : NumbersOfAttentionRanks(setup.num_ranks)) {
    const int experts = setup.num_ranks - attention;
    if (experts > num_experts) continue;
    Layout layout{.attention_dp = attention, .expert_ep = experts, .disaggregates = true};
    AddDivisions(layout, factors, num_experts, layouts);
    layout.attention_ranks = solved.AttentionRanks(attention);
    if (!layout.attention_ranks.empty()) AddDivisions(layout, factors, num_experts, layouts);
    const std::vector<int> smallest = SmallestRanks(question, setup.num_ranks, attention);
    if (smallest.empty() || smallest == layout.attention_ranks) continue;
    layout.attention_ranks = smallest;
    AddDivisions(layout, factors, num_experts, layouts);
  }
  return layouts;
}

}  // namespace convene::planner
