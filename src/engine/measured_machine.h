// What convene measure has found out about the machine that this process computes on, if somebody
// has run it: rates by which batches are priced. It measures nothing.
#pragma once

#include <optional>

#include "cost/machine_profile.h"

namespace convene::engine {

// The kept profile, with the GPU that computes if one does. None: it was not measured, or the
// profile is of another machine.
std::optional<cost::MachineProfile> MeasuredMachine(std::optional<int> gpu);

}  // namespace convene::engine
