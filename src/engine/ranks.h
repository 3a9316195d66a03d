// What several ranks do together besides computing: rank 0 runs the command and tells the others
// which models to load and when to leave.
#pragma once

#include <cstdint>
#include <string>

#include "base/result.h"
#include "comm/group.h"
#include "engine/loaded_model.h"

namespace convene::engine {

// On rank 0, before it loads: the others load the same, with the same options but for `edit`.
// *Collective* with FollowRankZero.
void AnnounceLoad(comm::Group& group, const std::string& directory, const LoadOptions& options);

// On rank 0, at the end, also of a command that loads nothing: the others return.
void Dismiss(comm::Group& group);

// On all others: loads and follows until dismissed. An error has been told on rank 0 by then.
// `directory`: where this rank has the model; empty: where rank 0 has it.
Status FollowRankZero(comm::Group& group, const std::string& directory = "");

}  // namespace convene::engine
