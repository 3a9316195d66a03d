#include "comm/connect.h"

#include "base/environment.h"
#include "comm/mpi/connect_mpi.h"
#include "comm/solo/solo_group.h"

namespace convene::comm {

Result<std::unique_ptr<Group>> Connect() {
  const LaunchedRank launched = RankFromLauncher();
  if (launched.size == 1) return MakeSoloGroup();
  return ConnectMpi(launched);
}

}  // namespace convene::comm
