#include "planner/operator_pricer.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <optional>
#include <string>
#include <utility>

#include "base/quote.h"
#include "base/units.h"
#include "cost/exchange_costs.h"
#include "cost/import_tables.h"
#include "cost/operator_prices.h"
#include "cost/operator_work.h"

namespace convene::planner {
namespace {

// As it would be: what was measured on it as it is then stands for another machine's.
cost::MachineProfile Under(const Conditions& conditions, cost::MachineProfile machine) {
  if (machine.device) {
    for (const auto& [name, model] : machine.operators) {
      machine.measured_on.try_emplace(
          name, cost::OtherMachine{*machine.device, cost::LinkOfHost(machine)});
    }
    for (auto& [format, flops] : machine.device->flops) flops /= conditions.machine.compute;
    machine.device->memory_bytes_per_second /= conditions.machine.memory;
  }
  machine.machine.f32_gflops /= conditions.machine.compute;
  machine.machine.bf16_gflops /= conditions.machine.compute;
  machine.machine.int8_gops /= conditions.machine.compute;
  machine.machine.read_gbps /= conditions.machine.memory;
  machine.machine.disk_gbps /= conditions.disk;
  for (cost::LinkLevel& link : machine.links) link.bytes_per_second /= conditions.link;
  return machine;
}

}  // namespace

Result<cost::OperatorCostsOptions> OperatorOptions(std::string_view weights) {
  if (weights == "bf16" || weights == "int8") {
    return cost::OperatorCostsOptions{.format = std::string(weights)};
  }
  if (weights == "int4") return cost::OperatorCostsOptions{.format = "int4_wo"};
  return Error{
      fmt::format("weights in {} have no prices on machines that are not here: take bf16, "
                  "int8 or int4",
                  Quote(weights))};
}

Result<SchedulePrices> OperatorPricer::Price(const model::ModelSpec& spec,
                                             const schedule::Schedule& schedule,
                                             const schedule::ActivityGraph& graph,
                                             const cost::Sizes& sizes) const {
  if (ReadsDisk(schedule)) {
    if (machine_.device) {
      return Error{
          fmt::format("experts are read from a disk where CPUs compute, and the profile is of {}",
                      Quote(machine_.device->name))};
    }
    if (machine_.machine.disk_gbps <= 0) return NoDiskRate();
  }
  const bool loads = std::ranges::any_of(schedule.tasks, [](const schedule::Task& task) {
    return task.kind == schedule::TaskKind::kLoadExperts;
  });
  if (loads) {
    return Error{
        "experts that come from an int4 backup have no price on machines that are not here: leave "
        "--allow transition out, or take costs that were measured (convene measure)"};
  }
  const Result<cost::OperatorCosts> costs = cost::OperatorCosts::Create(machine_, spec, options_);
  if (!costs) return costs.error();
  cost::OperatorPrices priced = cost::PriceSchedule(schedule, graph, *costs, sizes);
  return SchedulePrices{.prices = std::move(priced.prices),
                        .extrapolated_share = priced.extrapolated_share};
}

cost::StepErrors OperatorPricer::Errors() const {
  const auto of = [&](const std::string& name) -> std::optional<cost::ErrorRange> {
    const auto found = machine_.operators.find(name);
    if (found == machine_.operators.end()) return std::nullopt;
    return cost::ErrorRange{.low = found->second.low_factor - 1,
                            .high = found->second.high_factor - 1};
  };
  // Of the operators by which OperatorCosts prices.
  const Result<cost::ProductFormat> format = cost::ProductFormatOf(options_.format);
  const auto of_product = [&](const std::string& name) {
    const auto own = format ? of(fmt::format("{} {}", name, format->name)) : std::nullopt;
    return own ? own : of(name + " bf16");
  };
  cost::StepErrors errors;
  for (const auto& [name, model] : machine_.operators) {
    if (!cost::IsExchangeModel(name)) continue;
    const std::optional<cost::ErrorRange> range = of(name);
    const cost::ErrorRange widest = errors.exchanges.value_or(cost::ErrorRange{});
    errors.exchanges = cost::ErrorRange{.low = std::min(widest.low, range->low),
                                        .high = std::max(widest.high, range->high)};
  }
  errors.by_kind.fill(of_product("product"));
  errors.by_kind[static_cast<size_t>(schedule::TaskKind::kExperts)] = of_product("grouped_product");
  return errors;
}

std::vector<int> OperatorSource::ThreadsOf(int /*num_ranks*/, std::string_view weights) const {
  const std::vector<std::string> formats = Formats();
  if (std::find(formats.begin(), formats.end(), weights) == formats.end()) return {};
  return {machine_.device ? 1 : std::max(1, static_cast<int>(machine_.machine.cpus.size()))};
}

std::vector<std::string> OperatorSource::Formats() const {
  const bool has_int8 =
      machine_.device ? machine_.device->flops.contains("int8") : machine_.machine.int8_gops > 0;
  return has_int8 ? std::vector<std::string>{"bf16", "int4", "int8"}
                  : std::vector<std::string>{"bf16", "int4"};
}

Result<std::unique_ptr<StepPricer>> OperatorSource::PricerOf(const RankSetup& setup,
                                                             const Conditions& conditions,
                                                             int comm_budget) const {
  Result<cost::OperatorCostsOptions> options = OperatorOptions(setup.weights);
  if (!options) return options.error();
  if (setup.int8_kv && machine_.device) {
    return Error{"on a GPU keys and values are cached in bf16 alone: use --kv-cache bf16"};
  }
  options->order = options_.order;
  options->comm_budget = comm_budget;
  const bool is_usual = conditions == Conditions{.weight_bytes = conditions.weight_bytes};
  return std::unique_ptr<StepPricer>(std::make_unique<OperatorPricer>(
      is_usual ? machine_ : Under(conditions, machine_), *std::move(options)));
}

std::vector<int> OperatorSource::CommBudgets() const {
  constexpr int kStep = 4;  // EPS-MoE's, Table IV
  std::vector<int> budgets;
  if (!machine_.device) return budgets;
  // From what the links need downwards: more of them move nothing faster.
  const double needed = std::min(cost::LinkOfHost(machine_) / cost::kBytesPerMultiprocessor,
                                 machine_.device->num_multiprocessors / 2.0 - (kStep - 1));
  for (int steps = static_cast<int>(std::ceil(needed / kStep)); steps > 0; --steps) {
    budgets.push_back(steps * kStep);
  }
  return budgets;
}

std::string OperatorSource::WhyUnknown(int num_ranks, std::optional<int> num_threads,
                                       std::string_view weights) const {
  if (const auto options = OperatorOptions(weights); !options) return options.error().message;
  const std::vector<int> known = ThreadsOf(num_ranks, weights);
  if (num_threads && !known.empty()) {
    return fmt::format("ranks of this machine have {}, and not {}: leave the number out",
                       FormatCount(static_cast<uint64_t>(known.front()), "thread"), *num_threads);
  }
  return fmt::format("the profile has no rates of weights in {}: take {}", weights,
                     fmt::join(Formats(), " or "));
}

MachineFigures OperatorSource::FiguresOf(const RankSetup& setup) const {
  const double link = machine_.links.empty() ? 0 : machine_.links.front().bytes_per_second;
  MachineFigures figures{.link_bytes_per_second = link * setup.num_ranks,
                         .disk_bytes_per_second = 1e9 * machine_.machine.disk_gbps};
  if (machine_.device) {
    figures.memory_bytes_per_second = machine_.device->memory_bytes_per_second;
    const auto found = machine_.device->flops.find(setup.weights == "int8" ? "int8" : "bf16");
    if (found != machine_.device->flops.end()) figures.operations_per_second = found->second;
  } else {
    figures.memory_bytes_per_second = 1e9 * machine_.machine.read_gbps;
    const cost::DeviceFigures host = cost::FiguresOfHost(machine_.machine);
    const auto found = host.flops.find(setup.weights == "int8" ? "int8" : "bf16");
    if (found != host.flops.end()) figures.operations_per_second = found->second;
  }
  return figures;
}

}  // namespace convene::planner
