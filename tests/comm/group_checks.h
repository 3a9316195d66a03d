// What every group of ranks must do, whatever its backend: called on all its ranks, by tests on
// threads and by a program under mpirun. A failed check ends the program.
#pragma once

#include "comm/group.h"

namespace convene::comm {

void CheckAllToAll(Group& group);       // uneven, empty and long messages; many under way at once
void CheckBlockingCalls(Group& group);  // Barrier, Broadcast, AllGather
void CheckAgreement(Group& group);
void CheckSentBytes(Group& group);  // what left for others, whatever call it was

inline void CheckGroup(Group& group) {
  CheckAllToAll(group);
  CheckBlockingCalls(group);
  CheckAgreement(group);
  CheckSentBytes(group);
}

}  // namespace convene::comm
