// The backend over MPI, without its headers. without_mpi/ stands in where MPI was not found.
#pragma once

#include <memory>

#include "base/environment.h"
#include "base/result.h"
#include "comm/group.h"

namespace convene::comm {

// As Connect, for a process that `launched` says is one of several.
Result<std::unique_ptr<Group>> ConnectMpi(const LaunchedRank& launched);

}  // namespace convene::comm
