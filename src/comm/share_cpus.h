// The CPUs of all ranks on a host, put together. How each rank takes its part of them is
// hardware/topology.h.
#pragma once

#include "comm/group.h"

namespace convene::comm {

// A launcher may have bound each rank to CPUs of its own, and may not: ranks divide those of their
// host themselves. Afterwards the calling thread may run on what all ranks on its host might run
// on; where the system refuses, on what it might before. *Collective*.
void ShareCpusOfHost(Group& group);

}  // namespace convene::comm
