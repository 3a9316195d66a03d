#include "runtime/check_options.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <vector>

#include "base/check.h"
#include "kernels/kernel_set.h"
#include "runtime/spilled_kv.h"

namespace convene::runtime {

using strategy::Phase;

namespace {

// Of both stacks.
std::vector<model::LayerSpec> AllLayers(const model::ModelSpec& spec) {
  std::vector<model::LayerSpec> layers = spec.encoder_layers;
  layers.insert(layers.end(), spec.layers.begin(), spec.layers.end());
  return layers;
}

// What ranks add up of one row (device/expert_rows.h), and what cannot be divided among them.
Status CheckRoles(const model::ModelSpec& spec, const TransformerOptions& options, Phase phase) {
  const strategy::Roles& roles = options.parallel.RolesIn(phase);
  if (roles.attention_parts() > kernels::kMaxTopK) {
    return Error{
        fmt::format("attention is divided by heads among {} ranks; at most {} are "
                    "supported: divide it by sequences (dp)",
                    roles.attention_parts(), kernels::kMaxTopK)};
  }
  // Of each expert a sum from each rank that has a slice of it, at the worst; own experts' outputs
  // come one by one.
  const int most_peers = roles.num_expert_ranks() - (roles.are_whole() ? 1 : 0);
  for (const model::LayerSpec& layer : AllLayers(spec)) {
    if (!layer.moe) continue;
    const int visits = layer.moe->top_k + (roles.divides_shared() ? 1 : 0);
    const int most = std::min(visits * roles.expert_slices(), visits + most_peers);
    if (most <= kernels::kMaxTopK) continue;
    return Error{
        fmt::format("with {} experts per token in {} slices each a token may have {} "
                    "partial sums; at most {} are supported: use fewer slices",
                    layer.moe->top_k, roles.expert_slices(), most, kernels::kMaxTopK)};
  }
  const bool pads = options.parallel.experiment.capacity_factor > 0;
  if (pads && (roles.divides_shared() || roles.num_stages() > 1)) {
    return Error{
        "experts are padded to a capacity (an experiment) where rows are dispatched to routed "
        "experts alone: use a layout without layers= and shared="};
  }
  if (options.expert_capacity > 0 && roles.attention_parts() > 1) {
    return Error{
        fmt::format("a capacity of experts counts the tokens of a sequence, which {} ranks share "
                    "here: divide attention by sequences (dp), or leave --expert-capacity out",
                    roles.attention_parts())};
  }
  return {};
}

// Whether all ranks have the same attention in both.
bool HaveSameAttention(const strategy::Roles& a, const strategy::Roles& b) {
  if (a.num_ranks() != b.num_ranks()) return false;
  for (int rank = 0; rank < a.num_ranks(); ++rank) {
    if (a.of(rank).attention != b.of(rank).attention) return false;
  }
  return true;
}

}  // namespace

Status CheckOptions(weights::WeightStore& weights, const device::Device& device,
                    const TransformerOptions& options) {
  const model::ModelSpec& spec = weights.spec();
  const std::optional<strategy::Roles>& decode = options.parallel.decode_roles;
  const Status supported = device.Supports(spec, options.activations);
  if (!supported) return supported.error();
  for (const Phase phase : {Phase::kPrefill, Phase::kDecode}) {
    const Status fits = CheckRoles(spec, options, phase);
    if (!fits) return fits.error();
  }
  if (decode && !options.parallel.roles.are_whole()) {
    return Error{
        "ranks with experts alone have the same experts in both phases: leave --decode-experts "
        "(decode in the plan) out"};
  }
  if (decode && !HaveSameAttention(options.parallel.roles, *decode)) {
    return Error{
        "ranks whose attention in decode differs from that in prefill cannot be executed, since "
        "the "
        "KV cache stays where it is: let decode divide the experts alone otherwise"};
  }
  CHECK(!decode || weights.phased() != nullptr, "these weights are of one phase");
  CHECK(!options.parallel.loads_experts || decode, "the same experts in both phases");
  if (options.kv_spill) {
    const Status spills = SpilledKv::Supports(spec, options);
    if (!spills) return spills.error();
  }
  for (const model::LayerSpec& layer : AllLayers(spec)) {
    if (options.expert_capacity > 0 && layer.moe && layer.moe->top_k != 1) {
      return Error{
          fmt::format("a capacity of experts is for models with one expert per token; this one "
                      "activates {}: leave --expert-capacity out",
                      layer.moe->top_k)};
    }
  }
  return {};
}

}  // namespace convene::runtime
