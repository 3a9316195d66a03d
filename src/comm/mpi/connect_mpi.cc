#include "comm/mpi/connect_mpi.h"

#include <fmt/format.h>
#include <mpi.h>
#include <unistd.h>

#include <cstring>

#include "base/check.h"
#include "comm/agree.h"
#include "comm/mpi/mpi_group.h"
#include "comm/under_way.h"

namespace convene::comm {
namespace {

// Everybody's host and process, by rank.
std::vector<Peer> GatherPeers(int size) {
  struct Card {
    char host[252];
    int pid;
  };
  Card own = {};
  std::strncpy(own.host, HostName().c_str(), sizeof(own.host) - 1);
  own.pid = getpid();
  std::vector<Card> cards(size);
  MPI_Allgather(&own, sizeof(own), MPI_BYTE, cards.data(), sizeof(own), MPI_BYTE, MPI_COMM_WORLD);
  std::vector<Peer> peers;
  for (const Card& card : cards) peers.push_back({.host = card.host, .pid = card.pid});
  return peers;
}

}  // namespace

Result<std::unique_ptr<Group>> ConnectMpi(const LaunchedRank& launched) {
  int is_initialized = 0;
  MPI_Initialized(&is_initialized);
  CHECK(!is_initialized, "Connect was called twice");
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
  const std::string& host = job->peers[job->rank].host;
  std::vector<Neighbour> neighbours;
  for (int rank = 0; rank < job->size; ++rank) {
    const Peer& peer = job->peers[rank];
    if (rank != job->rank && peer.host == host) neighbours.push_back({rank, peer.pid});
  }
  EndWithMessageOnSigterm(job->OwnName(), neighbours);
  return std::unique_ptr<Group>(std::make_unique<MpiGroup>(std::move(job)));
}

}  // namespace convene::comm
