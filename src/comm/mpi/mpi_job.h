// The connection of this process to its peers over MPI: communicators, the one lock around all MPI
// calls, and the end of the job when something is wrong. What is exchanged is in mpi_group.h.
#pragma once

#include <mpi.h>

#include <mutex>
#include <string>
#include <vector>

#include "comm/group.h"

namespace convene::comm {

struct Peer {
  std::string host;
  int pid = 0;
  std::string role = {};      // what it does, as "experts"; empty: nothing to say
  bool is_far = false;        // a network is between it and this process
  bool has_pid_here = false;  // signals of this process reach it by `pid`
};

struct MpiJob {
  int rank = 0;
  int size = 0;
  std::vector<Peer> peers;      // by rank, this one among them
  MPI_Comm queues[kNumQueues];  // one each, so that exchanges of two never match
  MPI_Comm signs_of_life;       // of watchdogs alone
  // Held around every MPI call (MPI_THREAD_SERIALIZED): a few microseconds each, since all of them
  // are non-blocking. MPI_THREAD_MULTIPLE would put locks into every path of the library instead.
  std::timed_mutex mutex;

  // "rank 1 (experts, host node1, pid 4711)".
  std::string NameOf(int rank) const;
  // This one's, without the process.
  std::string OwnName() const;
};

// Ends this process and the job with "convene: rank 0 (...): <message>" on standard error. If MPI
// does not manage to, which a dead host can bring about, this process ends a second later anyway,
// and the launcher some 2.5 seconds later.
[[noreturn]] void EndJob(const MpiJob& job, const std::string& message);

// For results of MPI calls; `doing` is "sending to rank 1 in `what`".
void CheckMpi(const MpiJob& job, int code, const std::string& doing);

}  // namespace convene::comm
