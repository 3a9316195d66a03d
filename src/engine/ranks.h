// What the ranks but rank 0, which runs the command, do besides computing: they load what rank 0
// announces (announce_load.h), follow its steps, and measure with it.
#pragma once

#include <string>

#include "base/result.h"
#include "comm/group.h"
#include "engine/step_costs_source.h"

namespace convene::engine {

// On all ranks but rank 0: loads and follows until dismissed. An error has been told on rank 0 by
// then. `directory`: where this rank has the model; empty: where rank 0 has it. `step_costs`: as in
// LoadOptions, on all ranks or on none.
Status FollowRankZero(comm::Group& group, const std::string& directory = "",
                      const StepCostsSource& step_costs = {});

}  // namespace convene::engine
