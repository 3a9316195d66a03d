// Ranks within one process, for tests and debugging: each is driven by threads of its own, and
// messages are copied from the sender's buffer to the receiver's. Stricter than MPI: a message
// that the other side does not take never completes, and sizes that differ end the program.
#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "comm/group.h"

namespace convene::comm {

// `num_ranks` groups that are connected with each other, by rank. They may be destroyed in any
// order, but not before their exchanges.
std::vector<std::unique_ptr<Group>> MakeThreadGroups(int num_ranks);

// Calls `work` with each of `num_ranks` such groups, on a thread each, and waits for all of them.
void RunOnThreads(int num_ranks, const std::function<void(Group&)>& work);

}  // namespace convene::comm
