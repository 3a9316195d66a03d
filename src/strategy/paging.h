// How a step reads the routed experts of a rank from a disk (Paging), by how many of them have room
// in memory: what the store of pages executes (weights/paged_weights.h) and what the planner
// prices. It reads nothing.
#pragma once

#include <cstdint>

#include "model/model_spec.h"
#include "strategy/role.h"
#include "strategy/step.h"

namespace convene::strategy {

// Whose experts are counted; by default those of the only rank.
struct ExpertOwner {
  Roles roles = {};
  int rank = 0;
};

// Of one layer, the most that any layer of both stacks has; 0: none has experts.
int MostExperts(const model::ModelSpec& spec, const ExpertOwner& owner = {});
// Of all layers of both stacks.
int CountExperts(const model::ModelSpec& spec, const ExpertOwner& owner = {});
// With room for fewer nothing can be worked with: a part of a layer's experts that is computed, and
// one that is read, where a layer is cut into kMostChunks parts at most.
int FewestExpertsInMemory(const model::ModelSpec& spec, const ExpertOwner& owner = {});

// Of a step of so many tokens, of all ranks together, in the decoder or the encoder, where as many
// experts of all layers as `experts_in_memory` have room, at least FewestExpertsInMemory. Ranks of
// one step have one Paging, since they exchange rows in its chunks: that of an owner with the most
// experts (LargestOwner) and of the least room that a rank has.
Paging PagingOf(const model::ModelSpec& spec, bool encoder, int experts_in_memory,
                int64_t num_tokens, const ExpertOwner& owner = {});

// Of a layer's experts those that so many tokens choose, on even routing.
double ChosenExperts(const model::MoeSpec& moe, double num_tokens);

// Of each layer so many experts stay from step to step where steps read all that is missing, so
// that what is on its way has room beside them.
int StayingExperts(const model::ModelSpec& spec, int experts_in_memory, const Paging& paging,
                   const ExpertOwner& owner = {});

// Of a rank that has as many experts as any.
ExpertOwner LargestOwner(const model::ModelSpec& spec, const Roles& roles);

}  // namespace convene::strategy
