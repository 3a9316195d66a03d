// What rank 0 tells the others of its job: which models to load, what costs to find, which plans to
// try, and when to leave. What they do then is ranks.h.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <variant>

#include "comm/group.h"
#include "comm/wire_format.h"
#include "engine/load_options.h"
#include "kernels/packed_matrix.h"

namespace convene::engine {

// Rank 0 calls this before it loads a model: the other ranks load the same one with the same
// options (all but `edit`, which does not travel). *Collective* with WaitForWork.
void AnnounceLoad(comm::Group& group, const std::string& directory, const LoadOptions& options);

// Of which steps costs are wanted.
struct CostsWish {
  kernels::WeightFormat weights = kernels::WeightFormat::kInt8;
  comm::WireFormat wire = comm::WireFormat::kF32;
  bool int8_kv = false;                 // as CostsRequest's
  std::optional<int> num_threads = {};  // as LoadOptions', and so the next one
  std::optional<uint64_t> memory_budget = {};
};

// Rank 0 calls this before it finds costs (ask_for_costs.h). *Collective* with WaitForWork.
void AnnounceCosts(comm::Group& group, const CostsWish& wish);

// Rank 0 calls this before it tries plans with the others: `question`, which is not the engine's to
// understand (TrialSource), says how. *Collective* with WaitForWork.
void AnnounceTrial(comm::Group& group, const std::string& directory, const std::string& question);

// Rank 0 calls this before the first `num_ranks` work by themselves (fewer_ranks.h), at least two:
// these follow it in a group of their own until they are dismissed from that, and the others wait.
// *Collective* with WaitForWork.
void AnnounceFewer(comm::Group& group, int num_ranks);

// Rank 0 calls this at the end of every command, also of one that loads nothing: the others then
// leave FollowRankZero.
void Dismiss(comm::Group& group);

struct AnnouncedLoad {
  std::string directory;  // where rank 0 has the model
  LoadOptions options;    // with `group`
};

struct AnnouncedTrial {
  std::string directory;  // where rank 0 has the model
  std::string question;
};

struct AnnouncedFewer {
  int num_ranks = 0;
};

// All other ranks call this to learn what rank 0 does next; nothing once it has dismissed them.
// *Collective.*
using Work = std::variant<AnnouncedLoad, CostsWish, AnnouncedTrial, AnnouncedFewer>;
std::optional<Work> WaitForWork(comm::Group& group);

}  // namespace convene::engine
