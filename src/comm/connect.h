// How a process finds its peers: alone unless a launcher (mpirun, srun) started it as one of
// several ranks.
#pragma once

#include <memory>

#include "base/result.h"
#include "comm/group.h"

namespace convene::comm {

// A group of one, without touching MPI, or all ranks that were launched together. At most once in a
// process, which is connected until the group is destroyed: then it waits for its peers to leave,
// too, and after that cannot connect again. From here on a peer that dies, hangs or cannot be
// reached ends the process within 10 seconds, with a message, and the calling thread may run on the
// CPUs of all ranks on its host (share_cpus.h).
//
// Collective. Errors: several ranks in a build without MPI, or a launcher that did not connect
// them.
Result<std::unique_ptr<Group>> Connect();

}  // namespace convene::comm
