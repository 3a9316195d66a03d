#include "comm/mpi/connect_mpi.h"

#include <fmt/format.h>

namespace convene::comm {

Result<std::unique_ptr<Group>> ConnectMpi(const LaunchedRank& launched) {
  return Unavailable(fmt::format(
      "{} started this process as one of {} ranks, but this build of convene has no MPI; install "
      "it (libopenmpi-dev) and build again in a new folder, or start one process",
      launched.launcher, launched.size));
}

}  // namespace convene::comm
