#include "cli/describe_exchanges.h"

#include <fmt/format.h>

#include <tuple>

#include "cost/exchange_costs.h"
#include "cost/import_tables.h"
#include "cost/operator_work.h"
#include "model/model_spec.h"

namespace convene::cli {
namespace {

using schedule::TaskKind;

// A step of prefill of a large model, the size at which such kernels are usually compared.
constexpr double kTokens = 4096;
constexpr int kHidden = 7168;
constexpr int kTopK = 8;
constexpr int kExperts = 256;

model::ModelSpec SpecOfShownSize() {
  model::LayerSpec layer;
  layer.moe = model::MoeSpec{.num_experts = kExperts, .top_k = kTopK};
  model::ModelSpec spec;
  spec.hidden_size = kHidden;
  spec.layers = {layer};
  return spec;
}

}  // namespace

std::string DescribeExchanges(const cost::MachineProfile& machine) {
  if (!machine.device || machine.device->num_multiprocessors == 0) return "";
  const model::ModelSpec spec = SpecOfShownSize();
  const cost::ExchangeCosts costs(machine, *machine.device, spec);
  const double link = cost::LinkOfHost(machine);
  std::string text;
  for (const auto& [kind, name, element_bytes] :
       {std::tuple(TaskKind::kDispatch, "dispatch", cost::kDispatchedBytes),
        std::tuple(TaskKind::kCombine, "combine", cost::kCombinedBytes)}) {
    if (!costs.HasDispatch(kind, cost::kRanksOfDispatch)) continue;
    const cost::OperatorWork work = cost::WorkOf(
        cost::DispatchShape{
            .num_tokens = kTokens, .hidden = kHidden, .top_k = kTopK, .num_experts = kExperts},
        cost::kRanksOfDispatch, element_bytes, /*link_bytes_per_second=*/1);
    const double bytes = work.ideal_seconds;
    std::string rates;
    const auto add = [&](const cost::ExchangeCosts::Share& share) {
      const double seconds = share.once + bytes / (link * share.efficiency);
      rates += fmt::format("{}{:.0f} with {}", rates.empty() ? "" : ", ", 1e-9 * bytes / seconds,
                           share.multiprocessors);
    };
    const cost::ExchangeCosts::Share needed = costs.OfDispatch(kind, bytes, link, 0, {});
    constexpr int kStep = 4;  // of the tables
    for (int number = kStep; number < needed.multiprocessors; number += kStep) {
      add(costs.OfDispatch(kind, bytes, link, 0, {.number = number}));
    }
    add(needed);
    const auto other = machine.measured_on.find(name);
    text += fmt::format(
        "  {} among {:.0f} ranks, GB/s over the multiprocessors of each: {} ({:.0f} tokens of {} "
        "values, {} of {} experts; {}{})\n",
        name, cost::kRanksOfDispatch, rates, kTokens, kHidden, kTopK, kExperts,
        machine.operators.at(name).spec.source,
        other == machine.measured_on.end()
            ? ""
            : fmt::format("; the share of its link that {} reaches", other->second.device.name));
  }
  text += fmt::format(
      "  {}exchanges take a multiprocessor for each {:.0f} GB/s that they move, as 4 of H100 reach "
      "with DeepEP's kernels\n",
      text.empty() ? "" : "other ", 1e-9 * cost::kBytesPerMultiprocessor);
  return text;
}

}  // namespace convene::cli
