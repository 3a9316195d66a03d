#include "plan/choices.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <span>

#include "base/quote.h"

namespace convene::plan {
namespace {

// By the values of the enumerations.
constexpr std::string_view kWireNames[] = {"auto", "f32", "bf16", "fp8", "fp8-both"};
constexpr std::string_view kGemmNames[] = {"auto", "grouped", "dense"};
constexpr std::string_view kTransitionNames[] = {"reshard", "int4"};
constexpr std::string_view kStrategyNames[] = {"naive", "pppipe", "fine"};
constexpr std::string_view kOrderNames[] = {"asas", "aass"};
constexpr std::string_view kCutNames[] = {"tokens", "experts"};

template <typename Kind>
std::optional<Kind> FromName(std::span<const std::string_view> names, std::string_view name) {
  const auto found = std::ranges::find(names, name);
  if (found == names.end()) return std::nullopt;
  return static_cast<Kind>(found - names.begin());
}

}  // namespace

bool Rounds(Wire wire) { return wire != Wire::kAuto && wire != Wire::kF32; }

std::string_view Name(Wire wire) { return kWireNames[static_cast<size_t>(wire)]; }

Result<Wire> WireFromName(std::string_view name) {
  if (const auto wire = FromName<Wire>(kWireNames, name)) return *wire;
  return Error{
      fmt::format("the wire format is auto, f32, bf16, fp8 or fp8-both, not {}", Quote(name))};
}

std::string_view Name(GemmChoice gemm) { return kGemmNames[static_cast<size_t>(gemm)]; }

Result<GemmChoice> GemmFromName(std::string_view name) {
  if (const auto gemm = FromName<GemmChoice>(kGemmNames, name)) return *gemm;
  return Error{fmt::format("gemm is auto, grouped or dense, not {}", Quote(name))};
}

std::string_view Name(Transition transition) {
  return kTransitionNames[static_cast<size_t>(transition)];
}

Result<Transition> TransitionFromName(std::string_view name) {
  if (const auto transition = FromName<Transition>(kTransitionNames, name)) return *transition;
  return Error{fmt::format("the transition is reshard or int4, not {}", Quote(name))};
}

DisaggregatedStrategy StrategyOf(const strategy::Pipeline& pipeline) {
  if (!pipeline.dispatch_after_shared) return DisaggregatedStrategy::kFine;
  return pipeline.micro_batches == 1 ? DisaggregatedStrategy::kNaive
                                     : DisaggregatedStrategy::kPpPipe;
}

std::string_view Name(DisaggregatedStrategy chosen) {
  return kStrategyNames[static_cast<size_t>(chosen)];
}

Result<DisaggregatedStrategy> DisaggregatedStrategyFromName(std::string_view name) {
  if (const auto chosen = FromName<DisaggregatedStrategy>(kStrategyNames, name)) return *chosen;
  return Error{fmt::format("the strategy is naive, pppipe or fine, not {}", Quote(name))};
}

std::string_view Name(strategy::AttentionOrder order) {
  return kOrderNames[static_cast<size_t>(order)];
}

Result<strategy::AttentionOrder> OrderFromName(std::string_view name) {
  if (const auto order = FromName<strategy::AttentionOrder>(kOrderNames, name)) return *order;
  return Error{fmt::format("the order of attention and shared experts is asas or aass, not {}",
                           Quote(name))};
}

std::string_view Name(strategy::ChunkCut cut) { return kCutNames[static_cast<size_t>(cut)]; }

Result<strategy::ChunkCut> CutFromName(std::string_view name) {
  if (const auto cut = FromName<strategy::ChunkCut>(kCutNames, name)) return *cut;
  return Error{fmt::format("chunks are cut by tokens or by experts, not by {}", Quote(name))};
}

}  // namespace convene::plan
