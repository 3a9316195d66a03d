// Profiles of machines as files: the kept one, and those that somebody names.
#pragma once

#include <string>

#include "base/result.h"
#include "cost/machine_profile.h"

namespace convene::evaluate {

// Errors: no such file, not a profile; they name the file and the command that makes one.
Result<cost::MachineProfile> LoadMachineProfile(const std::string& path);

// Of the same CPUs and instruction set: what was measured with other kernels says nothing of these.
bool IsOfSameMachine(const cost::MachineProfile& a, const cost::MachineProfile& b);

// The profile with what the file at `path` has besides: costs of steps that were not measured anew,
// where the file is of the same machine (of others nothing is taken over), operators that were not,
// and, where several ranks measured, the machine as one rank has it alone.
cost::MachineProfile WithKept(cost::MachineProfile profile, const std::string& path);

}  // namespace convene::evaluate
