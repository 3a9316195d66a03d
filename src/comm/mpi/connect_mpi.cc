#include "comm/mpi/connect_mpi.h"

#include <fmt/format.h>
#include <mpi.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <span>
#include <string>

#include "base/check.h"
#include "base/digest.h"
#include "base/environment.h"
#include "comm/agree.h"
#include "comm/mpi/mpi_group.h"
#include "comm/under_way.h"

namespace convene::comm {
namespace {

// Containers of one host have a network between them, too, and numbers of processes of their own.
uint64_t OwnNamespace(const char* file) {
  struct stat status = {};
  return stat(file, &status) == 0 ? status.st_ino : 0;
}

// Everybody's host and process, by rank.
std::vector<Peer> GatherPeers(int size) {
  struct Card {
    char host[252];
    int pid;
    uint64_t machine;  // hosts may have the same name
    uint64_t network;
    uint64_t processes;
  };
  Card own = {};
  std::strncpy(own.host, HostName().c_str(), sizeof(own.host) - 1);
  own.pid = getpid();
  const std::string machine = MachineName();
  own.machine = DigestOf(std::as_bytes(std::span(machine)));
  own.network = OwnNamespace("/proc/self/ns/net");
  own.processes = OwnNamespace("/proc/self/ns/pid");
  std::vector<Card> cards(size);
  MPI_Allgather(&own, sizeof(own), MPI_BYTE, cards.data(), sizeof(own), MPI_BYTE, MPI_COMM_WORLD);
  std::vector<Peer> peers;
  for (const Card& card : cards) {
    const bool is_here = card.machine == own.machine;
    peers.push_back({.host = card.host,
                     .pid = card.pid,
                     .is_far = !is_here || card.network != own.network,
                     .has_pid_here = is_here && card.processes == own.processes});
  }
  return peers;
}

// OpenMPI sends a message over TCP only once its receiver has asked for it, unless the message is
// short. The question waits behind what the receiver sends itself, so that two ranks with long
// messages for each other send in turn, and a link that carries both directions at once is half
// used (docs/results/tcp.md). Limits that were set for OpenMPI stay; other MPIs do not know them.
void SendWithoutAsking() {
  constexpr const char* kLimits[] = {"OMPI_MCA_btl_tcp_eager_limit",
                                     "OMPI_MCA_btl_tcp_rndv_eager_limit",
                                     "OMPI_MCA_btl_tcp_max_send_size"};
  constexpr size_t kHeaderBytes = 1024;  // more than OpenMPI's
  if (std::ranges::any_of(kLimits,
                          [](const char* limit) { return EnvironmentVariable(limit).has_value(); }))
    return;
  const std::string bytes = std::to_string(kEagerPieceBytes + kHeaderBytes);
  for (const char* limit : kLimits) setenv(limit, bytes.c_str(), /*overwrite=*/0);
}

}  // namespace

Result<std::unique_ptr<Group>> ConnectMpi(const LaunchedRank& launched) {
  int is_initialized = 0;
  MPI_Initialized(&is_initialized);
  CHECK(!is_initialized, "Connect was called twice");
  SendWithoutAsking();
  int provided = MPI_THREAD_SINGLE;
  if (MPI_Init_thread(nullptr, nullptr, MPI_THREAD_SERIALIZED, &provided) != MPI_SUCCESS)
    return Unavailable("MPI could not be initialised; its own message is above");

  auto job = std::make_unique<MpiJob>();
  MPI_Comm_rank(MPI_COMM_WORLD, &job->rank);
  MPI_Comm_size(MPI_COMM_WORLD, &job->size);
  if (job->size != launched.size) {
    MPI_Finalize();
    return Unavailable(fmt::format(
        "{} started {} ranks, but MPI connected {}: the launcher does not belong to the MPI that "
        "convene was built with. Use its own mpirun, or of Slurm `srun --mpi=pmix`",
        launched.launcher, launched.size, job->size));
  }
  if (provided < MPI_THREAD_SERIALIZED) {
    MPI_Finalize();
    return Error{
        "this MPI does not let several threads communicate (MPI_THREAD_SERIALIZED); use "
        "one that does, for instance OpenMPI 4"};
  }

  job->peers = GatherPeers(job->size);
  for (MPI_Comm& queue : job->queues) MPI_Comm_dup(MPI_COMM_WORLD, &queue);
  MPI_Comm_dup(MPI_COMM_WORLD, &job->signs_of_life);
  // Until here an error ended the job with MPI's words, from here on with ours.
  for (const MPI_Comm queue : job->queues) MPI_Comm_set_errhandler(queue, MPI_ERRORS_RETURN);
  MPI_Comm_set_errhandler(job->signs_of_life, MPI_ERRORS_RETURN);
  std::vector<Neighbour> neighbours;
  for (int rank = 0; rank < job->size; ++rank) {
    const Peer& peer = job->peers[rank];
    if (rank != job->rank && peer.has_pid_here) neighbours.push_back({rank, peer.pid});
  }
  EndWithMessageOnSigterm(job->OwnName(), neighbours);
  return std::unique_ptr<Group>(std::make_unique<MpiGroup>(std::move(job)));
}

}  // namespace convene::comm
