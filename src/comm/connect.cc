#include "comm/connect.h"

#include "base/environment.h"
#include "comm/mpi/connect_mpi.h"
#include "comm/share_cpus.h"
#include "comm/solo/solo_group.h"

namespace convene::comm {

Result<std::unique_ptr<Group>> Connect() {
  const LaunchedRank launched = RankFromLauncher();
  if (launched.size == 1) return MakeSoloGroup();
  Result<std::unique_ptr<Group>> connected = ConnectMpi(launched);
  if (connected) ShareCpusOfHost(**connected);
  return connected;
}

}  // namespace convene::comm
