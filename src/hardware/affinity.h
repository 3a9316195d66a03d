// Which logical CPUs a thread may run on. Not which it should: that is topology.h.
#pragma once

#include <vector>

#include "base/result.h"

namespace convene::hardware {

// Ascending CPU numbers of the calling thread's affinity mask, on machines of any size.
Result<std::vector<int>> CurrentAffinity();

// Likewise of the first thread of the process that started this one: a shell, or a launcher.
Result<std::vector<int>> AffinityOfParent();

// Confines the calling thread to `cpus`; threads it starts later inherit that.
// Error: none of them exists or is allowed to this process.
Status SetAffinity(const std::vector<int>& cpus);

}  // namespace convene::hardware
