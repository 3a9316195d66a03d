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

// One is read while the other one is computed. More parts would leave more room to experts that
// stay, but the disk stands still for a moment at the end of each: docs/results/paged_weights.md.
constexpr int kFewestParts = 2;

// Where a layer has most of them.
double MostChosen(const std::vector<model::LayerSpec>& layers, int64_t num_tokens) {
  double most = 0;
  for (const model::LayerSpec& layer : layers) {
    if (layer.moe)
      most = std::max(most, ChosenExperts(*layer.moe, static_cast<double>(num_tokens)));
  }
  return most;
}

// Whether the tokens leave an expert of each layer out, on even routing: then reading is to wait
// for what they choose.
bool LeavesExpertsOut(const std::vector<model::LayerSpec>& layers, int64_t num_tokens) {
  return std::ranges::all_of(layers, [&](const model::LayerSpec& layer) {
    return !layer.moe ||
           ChosenExperts(*layer.moe, static_cast<double>(num_tokens)) <= layer.moe->num_experts - 1;
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

double ChosenExperts(const model::MoeSpec& moe, double num_tokens) {
  const double experts = moe.num_experts;
  return experts * (1 - std::pow(1 - moe.top_k / experts, num_tokens));
}

int StayingExperts(const model::ModelSpec& spec, int experts_in_memory, const Paging& paging,
                   const ExpertOwner& owner) {
  const int most_experts = MostExperts(spec, owner);
  int num_layers = 0;
  VisitExperts(spec, owner, [&](int experts) { num_layers += experts > 0 ? 1 : 0; });
  const auto has_room = [&](int staying) {
    const int part = (most_experts - staying + paging.chunks - 1) / paging.chunks;
    return num_layers * staying + paging.depth * part <= experts_in_memory;
  };
  int staying = 0;
  while (staying < most_experts && has_room(staying + 1)) ++staying;
  return staying;
}

Paging PagingOf(const model::ModelSpec& spec, bool encoder, int experts_in_memory,
                int64_t num_tokens, const ExpertOwner& owner) {
  const auto& layers = encoder ? spec.encoder_layers : spec.layers;
  const int most_experts = std::max(1, MostExperts(spec, owner));
  const bool after_routing = LeavesExpertsOut(layers, num_tokens);
  // As few parts of a layer as leave room for two, and as much ahead as a layer.
  int chunks = std::min(kFewestParts, most_experts);
  const auto part = [&] { return (most_experts + chunks - 1) / chunks; };
  while (2 * part() > experts_in_memory && chunks < kMostChunks) ++chunks;
  Paging paging{.chunks = chunks,
                .depth = std::clamp(experts_in_memory / part(), 2, chunks + 1),
                .after_routing = after_routing};
  const int num_experts = CountExperts(spec, owner);
  paging.predicts = after_routing && experts_in_memory < num_experts;
  if (experts_in_memory >= num_experts) {
    paging.missing = 0;
  } else if (after_routing) {
    // Even routing finds what is in memory, but for what is on its way: of `on_their_way` chosen
    // ones those that are missing.
    const double on_their_way =
        std::min<double>(experts_in_memory, paging.depth * MostChosen(layers, num_tokens) / chunks);
    paging.missing =
        std::min(1.0, (num_experts - experts_in_memory) / (num_experts - on_their_way));
  } else {
    const int staying = StayingExperts(spec, experts_in_memory, paging, owner);
    int all_staying = 0;
    VisitExperts(spec, owner, [&](int experts) { all_staying += std::min(staying, experts); });
    paging.missing = 1 - static_cast<double>(all_staying) / num_experts;
  }
  return paging;
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
