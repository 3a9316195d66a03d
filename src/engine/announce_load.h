// What rank 0 tells the others of its job: which models to load, and when to leave. What they do
// then is ranks.h.
#pragma once

#include <optional>
#include <string>

#include "comm/group.h"
#include "engine/load_options.h"

namespace convene::engine {

// On rank 0, before it loads: the others load the same, with the same options but for `edit`.
// *Collective* with WaitForLoad.
void AnnounceLoad(comm::Group& group, const std::string& directory, const LoadOptions& options);

// On rank 0, at the end, also of a command that loads nothing: the others return.
void Dismiss(comm::Group& group);

struct AnnouncedLoad {
  std::string directory;  // where rank 0 has the model
  LoadOptions options;    // with `group`
};

// On all others: what rank 0 loads next; nothing once it has dismissed them. *Collective.*
std::optional<AnnouncedLoad> WaitForLoad(comm::Group& group);

}  // namespace convene::engine
