// Agreeing before a collective: a rank that alone returns an error while its peers go on would
// leave them waiting.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "base/digest.h"
#include "base/result.h"
#include "comm/group.h"

namespace convene::comm {

// Collective: every rank's text, in the order of ranks. `what` names the exchange, as in Group.
std::vector<std::string> GatherTexts(Group& group, const std::string& mine, std::string what);

// Collective: every rank gives how it fared. Success if all fared well, otherwise on every rank
// the error of the first that did not, with its kind, and with "rank 1 (host): " before its message
// where there are several.
Status AgreeOnSuccess(Group& group, const Status& mine);

// Collective: that all ranks were given the same (versions, checkpoints, options). Otherwise on
// every rank an error that shows rank 0's and the first one that differs: "`what` differs between
// ranks: ...".
Status AgreeOnSame(Group& group, const std::string& mine, const std::string& what);

// Collective: that all ranks which name a thing (a file, a tensor; `kind` says which) give it the
// same digest; a rank may leave out what it has nothing to do with. Otherwise on every rank an
// error that names the first thing that differs, a rank that is alone with its digest or in the
// smaller part, and one that is not.
Status AgreeOnDigests(Group& group, std::span<const NamedDigest> mine, const std::string& kind);

// The name of the host that this process runs on.
std::string HostName();

// Tells running systems apart, also where hosts have the same name: processes with the same
// MachineName share a monotonic clock and the numbers of files.
std::string MachineName();

}  // namespace convene::comm
