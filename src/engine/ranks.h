// What the ranks but rank 0, which runs the command, do besides computing: they load what rank 0
// announces (announce_load.h), follow its steps, and measure with it.
#pragma once

#include <functional>
#include <optional>
#include <string>

#include "base/environment.h"
#include "base/result.h"
#include "comm/group.h"
#include "engine/step_costs_source.h"

namespace convene::engine {

// Takes part in trying plans (AnnounceTrial), which is evaluate/'s: with the model in a directory,
// as the question says. What goes wrong is rank 0's to tell.
using TrialSource = std::function<void(comm::Group& group, const std::string& directory,
                                       const std::string& question)>;

// On all ranks but rank 0: loads and follows until dismissed. An error has been told on rank 0 by
// then; that this rank packs a checkpoint, and that its disk is slow, it says itself ("rank 2:
// ..."). `directory`: where this rank has the model; empty: where rank 0 has it. `step_costs`: as
// in LoadOptions, on all ranks or on none; so are `trials`. `local`: as LoadOptions'.
Status FollowRankZero(comm::Group& group, const std::string& directory = "",
                      const StepCostsSource& step_costs = {}, const TrialSource& trials = {},
                      const std::optional<LocalRank>& local = {});

}  // namespace convene::engine
