// What rank 0 tells the others of its job: which models to load, and when to leave. What they do
// then is ranks.h.
#pragma once

#include <optional>
#include <string>

#include "comm/group.h"
#include "engine/load_options.h"

namespace convene::engine {

// Rank 0 calls this before it loads a model: the other ranks load the same one with the same
// options (all but `edit`, which does not travel). *Collective* with WaitForLoad.
void AnnounceLoad(comm::Group& group, const std::string& directory, const LoadOptions& options);

// Rank 0 calls this at the end of every command, also of one that loads nothing: the others then
// leave FollowRankZero.
void Dismiss(comm::Group& group);

struct AnnouncedLoad {
  std::string directory;  // where rank 0 has the model
  LoadOptions options;    // with `group`
};

// All other ranks call this to learn what rank 0 loads next; nothing once it has dismissed them.
// *Collective.*
std::optional<AnnouncedLoad> WaitForLoad(comm::Group& group);

}  // namespace convene::engine
