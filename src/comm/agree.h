// Agreeing before a collective: a rank that alone returns an error while its peers go on would
// leave them waiting.
#pragma once

#include "base/result.h"
#include "comm/group.h"

namespace convene::comm {

// Collective: every rank gives how it fared. Success if all fared well, otherwise on every rank
// the message of the first that did not, with "rank 1 (host): " before it where there are several.
Status AgreeOnSuccess(Group& group, const Status& mine);

// Collective: that all ranks were given the same (versions, checkpoints, options). Otherwise on
// every rank an error that shows rank 0's and the first one that differs: "`what` differs between
// ranks: ...".
Status AgreeOnSame(Group& group, const std::string& mine, const std::string& what);

// The name of the host that this process runs on.
std::string HostName();

}  // namespace convene::comm
// Of the running system: processes with the same one share a monotonic clock and the numbers of
// files. Names of hosts need not differ.
std::string MachineName();

