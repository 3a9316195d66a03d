#include "strategy/paging.h"

#include <algorithm>
#include <cmath>
#include <vector>

namespace convene::strategy {
namespace {

template <typename Visit>
void VisitExperts(const model::ModelSpec& spec, const ExpertOwner& owner, Visit visit) {
  for (const auto* stack : {&spec.encoder_layers, &spec.layers}) {
    for (const model::LayerSpec& layer : *stack) {
      if (layer.moe) visit(owner.roles.ExpertsOf(owner.rank, layer.moe->num_experts).size);
    }
  }
}

// Whether the tokens leave an expert of each layer out, on even routing: then reading is to wait
// for what they choose.
bool LeavesExpertsOut(const std::vector<model::LayerSpec>& layers, int64_t num_tokens) {
  return std::ranges::all_of(layers, [&](const model::LayerSpec& layer) {
    if (!layer.moe) return true;
    const double experts = layer.moe->num_experts;
    return experts * std::pow(1 - layer.moe->top_k / experts, static_cast<double>(num_tokens)) >= 1;
  });
}

}  // namespace

int MostExperts(const model::ModelSpec& spec, const ExpertOwner& owner) {
  int most = 0;
  VisitExperts(spec, owner, [&](int experts) { most = std::max(most, experts); });
  return most;
}

int CountExperts(const model::ModelSpec& spec, const ExpertOwner& owner) {
  int count = 0;
  VisitExperts(spec, owner, [&](int experts) { count += experts; });
  return count;
}

int FewestExpertsInMemory(const model::ModelSpec& spec, const ExpertOwner& owner) {
  return std::min(2 * ((MostExperts(spec, owner) + kMostChunks - 1) / kMostChunks),
                  CountExperts(spec, owner));
}

Paging PagingOf(const model::ModelSpec& spec, bool encoder, int experts_in_memory,
                int64_t num_tokens, const ExpertOwner& owner) {
  // As few parts of a layer as leave room for two, one that is computed and one that is read; and
  // as much ahead as a layer. Two at least, so that one is read while the other one is computed.
  const int most_experts = std::max(1, MostExperts(spec, owner));
  int chunks = std::min(2, most_experts);
  const auto part = [&] { return (most_experts + chunks - 1) / chunks; };
  while (2 * part() > experts_in_memory && chunks < kMostChunks) ++chunks;
  const bool after_routing =
      LeavesExpertsOut(encoder ? spec.encoder_layers : spec.layers, num_tokens);
  const int num_experts = std::max(1, CountExperts(spec, owner));
  return {.chunks = chunks,
          .depth = std::clamp(experts_in_memory / part(), 2, chunks + 1),
          .after_routing = after_routing,
          .predicts = after_routing && experts_in_memory < num_experts,
          .missing = std::max(0.0, 1 - static_cast<double>(experts_in_memory) / num_experts)};
}

ExpertOwner LargestOwner(const model::ModelSpec& spec, const Roles& roles) {
  ExpertOwner largest{.roles = roles};
  for (int rank = 1; rank < roles.num_ranks(); ++rank) {
    const ExpertOwner other{.roles = roles, .rank = rank};
    if (CountExperts(spec, other) > CountExperts(spec, largest)) largest.rank = rank;
  }
  return largest;
}

}  // namespace convene::strategy
