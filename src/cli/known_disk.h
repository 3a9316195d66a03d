// How fast the disk is from which experts will be read, where a profile does not say it and plans
// need it (cli/plan_by_default.h).
#pragma once

#include <string>

#include "cli/model_options.h"
#include "cost/machine_profile.h"

namespace convene::cli {

struct KnownDisk {
  std::string words = {};    // what it reads, and how that is known
  bool is_measured = false;  // otherwise it is what is usual
};

// Measures it in less than a second, but where a disk takes longer to write what is then read, and
// keeps that beside the costs of steps that were kept before; where that cannot be, or `why_not`
// says why it is not to be, takes what is usual, which is not kept. `profile` knows it afterwards.
KnownDisk LearnDisk(const ModelOptions& options, const std::string& why_not,
                    cost::MachineProfile& profile);

}  // namespace convene::cli
