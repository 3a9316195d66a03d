// What exchanges of a machine that is not here reach, as convene import-profile prints it.
#pragma once

#include <string>

#include "cost/machine_profile.h"

namespace convene::cli {

// Lines: what dispatch and combine move with how many multiprocessors of each GPU, each with what
// it was measured on, and where it is not known, what is taken instead. Empty: the machine has no
// GPU.
std::string DescribeExchanges(const cost::MachineProfile& machine);

}  // namespace convene::cli
