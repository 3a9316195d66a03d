#include "bench/papers/hap_case.h"

#include <fmt/format.h>

#include <iterator>
#include <memory>
#include <nlohmann/json.hpp>
#include <utility>

#include "base/check.h"
#include "base/json.h"
#include "bench/papers/cutlass_experts.h"
#include "bench/papers/engine_exchanges.h"

namespace convene::papers {
namespace {

using planner::HybridAnswer;
using planner::HybridCandidate;

constexpr int kRanksOfHost = 8;
constexpr int kRanksOfSwitch = 4;

planner::PriceStep PriceOfHap(const cost::MachineProfile& machine, const ReadingOfHap& reading) {
  cost::OperatorCostsOptions options;
  if (reading.has_cutlass) options.order = cost::ExpertsOrder::kGrouped;
  return planner::PriceOn(machine, options);
}

// One link for all ranks of a host.
cost::MachineProfile WithoutSwitches(cost::MachineProfile machine) {
  std::erase_if(machine.links, [&](const cost::LinkLevel& link) {
    return &link != &machine.links.front() && link.num_ranks != 0;
  });
  machine.links.front().num_ranks = kRanksOfHost;
  return machine;
}

// Keeps the reference.
planner::PriceOfLayout PriceOfLayouts(const cost::MachineProfile& machine,
                                      const ReadingOfHap& reading) {
  if (!reading.has_engines_exchanges) return {};
  const auto ring = std::make_shared<cost::MachineProfile>(WithoutSwitches(machine));
  return [&machine, reading, ring](const strategy::Layout& layout) -> planner::PriceStep {
    const planner::PriceStep of_ring = PriceOfHap(*ring, reading);
    const auto keeping = [ring, of_ring](const auto&... arguments) {
      return of_ring(arguments...);
    };
    return WithExchangesOfEngine(PriceOfHap(machine, reading), keeping,
                                 machine.links.front().bytes_per_second, layout);
  };
}

// Tokens of C4 that Mixtral-8x7B gave each expert, in three of its layers: counted by allenai/OLMoE
// (Apache-2.0).
constexpr double kCountsOfMixtral[3][8] = {
    {56947, 49733, 50426, 49453, 52127, 57956, 42632, 58518},
    {50706, 54716, 51313, 50515, 56215, 49525, 53315, 51487},
    {47396, 58718, 55366, 32510, 55049, 57385, 57170, 54198}};

std::vector<cost::ExpertShares> SharesOf(const model::ModelSpec& spec,
                                         const ReadingOfHap& reading) {
  const model::MoeSpec& moe = *spec.layers.front().moe;
  if (!reading.has_counted_shares || moe.num_experts != 8) return {};
  std::vector<cost::ExpertShares> shares;
  for (const auto& counts : kCountsOfMixtral) {
    shares.push_back(cost::SharesFromCounts({std::begin(counts), std::end(counts)}, moe.top_k));
  }
  return shares;
}

}  // namespace

bool IsTensorParallel(const HybridCandidate& candidate, int num_ranks) {
  return candidate.prefill.attention_tp == num_ranks && candidate.prefill.expert_tp == num_ranks &&
         candidate.decode.expert_tp == num_ranks;
}

std::string ShortText(const HybridCandidate& candidate) {
  const auto of = [](const strategy::Layout& layout) {
    return planner::ToText(planner::ExpertStrategy{layout.expert_ep, layout.expert_tp}).substr(8);
  };
  std::string text = planner::ToText(planner::AttentionStrategy{candidate.prefill.attention_tp,
                                                                candidate.prefill.attention_dp})
                         .substr(10);
  text += " / " + of(candidate.prefill);
  if (candidate.triple.prefill != candidate.triple.decode) {
    text += fmt::format(" > {} ({})", of(candidate.decode), candidate.transition_by);
  }
  return text;
}

bool IsExpertParallel(const HybridCandidate& candidate, int num_ranks) {
  return candidate.prefill.attention_dp == num_ranks && candidate.prefill.expert_ep == num_ranks &&
         candidate.decode.expert_ep == num_ranks;
}

cost::MachineProfile MachineOfHap(const std::string& preset, const ReadingOfHap& reading) {
  cost::MachineProfile machine = Machine(preset);
  if (reading.has_engines_exchanges) {
    // The engine exchanges by NCCL alone; its all-reduces are engine_exchanges.h.
    std::erase_if(machine.operators, [](const auto& named) {
      const std::string& name = named.first;
      return name.starts_with("all_reduce") || name.starts_with("dispatch") ||
             name.starts_with("combine");
    });
  }
  if (reading.has_cutlass) {
    const Result<nlohmann::json> parsed = ParseJson(CutlassExperts());
    CHECK(parsed.ok(), "{}", parsed.error().message);
    Result<cost::OperatorModel> model = cost::OperatorModelFromJson(*parsed);
    CHECK(model.ok(), "{}", model.error().message);
    machine.operators["grouped_product bf16"] = *std::move(model);
  }
  if (reading.has_switches && preset == "v100-pcie3") {
    // Ranks below a switch reach each other at the rate of their links; what goes to the other
    // switch shares the one that its switch has to the host.
    cost::LinkLevel below = machine.links.front();
    cost::LinkLevel between = below;
    below.num_ranks = kRanksOfSwitch;
    between.name += " between switches";
    between.shared_by = cost::LinkSharing::kHost;
    machine.links.front() = std::move(below);
    machine.links.insert(machine.links.begin() + 1, std::move(between));
  }
  return machine;
}

Result<planner::PhaseTables> PriceAsHap(const model::ModelSpec& spec,
                                        const cost::MachineProfile& machine,
                                        const planner::AttentionStrategy& attention,
                                        const planner::ExpertStrategy& experts,
                                        const planner::PhaseStep& step,
                                        const ReadingOfHap& reading) {
  const planner::PriceStep price = PriceOfHap(machine, reading);
  const std::vector<planner::AttentionStrategy> one_attention = {attention};
  const std::vector<planner::ExpertStrategy> one_experts = {experts};
  strategy::Pipeline pipeline;
  pipeline.overlap = !reading.has_sums;
  return planner::PriceLayers({.spec = spec,
                               .attention = one_attention,
                               .experts = one_experts,
                               .pipeline = pipeline,
                               .shares = SharesOf(spec, reading),
                               .divides_rest = reading.divides_rest,
                               .price_of = PriceOfLayouts(machine, reading),
                               .price = price},
                              step);
}

Result<HybridAnswer> SearchAsHap(const model::ModelSpec& spec, const cost::MachineProfile& machine,
                                 int num_ranks, int batch, int prompt_tokens, int gen_tokens,
                                 const ReadingOfHap& reading) {
  planner::HybridQuestion question =
      AskHybrid(spec, machine, num_ranks, batch, prompt_tokens, gen_tokens);
  question.price = PriceOfHap(machine, reading);
  question.price_of = PriceOfLayouts(machine, reading);
  question.shares = SharesOf(spec, reading);
  question.divides_rest = reading.divides_rest;
  question.overlap = !reading.has_sums;
  if (reading.has_steps) {
    (reading.has_own_steps ? question.step_tokens : question.total_step_tokens) = kStepTokensOfHap;
  }
  return planner::SearchHybrid(question);
}

}  // namespace convene::papers
