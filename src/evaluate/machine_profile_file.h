// Profiles of machines as files: the kept one, and those that somebody names.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "base/result.h"
#include "comm/group.h"
#include "cost/machine_profile.h"
#include "engine/crossovers.h"
#include "hardware/cpu_identity.h"
#include "hardware/profile.h"
#include "kernels/streaming_choice.h"

namespace convene::evaluate {

// Errors: no such file, not a profile; they name the file and the command that makes one.
Result<cost::MachineProfile> LoadMachineProfile(const std::string& path);

// Why what was measured on the machine of `measured` says nothing of the one of `here`: another
// kind of CPU, one that is not known, or kernels of another instruction set. Empty: it is the same.
std::string WhyAnotherMachine(const hardware::Profile& measured, const hardware::CpuIdentity& here,
                              std::string_view isa);
bool IsOfSameMachine(const cost::MachineProfile& a, const cost::MachineProfile& b);

// The profile with what the file at `path` has besides: costs of steps that were not measured anew,
// where the file is of the same machine (of others nothing is taken over), operators that were not,
// and, where several ranks measured, the machine as one rank has it alone.
cost::MachineProfile WithKept(cost::MachineProfile profile, const std::string& path);

// *Collective.* How this rank reads panels while costs of steps are measured that will be kept in
// the file at `path`, so that they are those of the kernels with which models compute: as the
// machine of that file will say, which is what rank 0 has just measured (`measured` is read there
// alone) or, where several ranks measure, what the file has. Unset: as is usual on such CPUs.
std::optional<kernels::StreamingChoice> StreamingWhileMeasuring(
    comm::Group& group, const cost::MachineProfile& measured, const std::string& path,
    const engine::ComputesWith& here);

}  // namespace convene::evaluate
