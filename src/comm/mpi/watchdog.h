// Sees to it that no rank waits for one that has gone: every rank gives every other a sign of life
// twice a second, from a thread of its own, whatever its other threads do. It does not judge how
// fast a peer works.
#pragma once

#include <mpi.h>

#include <atomic>
#include <chrono>
#include <thread>
#include <vector>

#include "comm/mpi/mpi_job.h"

namespace convene::comm {

class Watchdog {
 public:
  // Ends the job (EndJob) when a peer was silent for 6 s, when an exchange waits for one that has
  // left, or when the launcher has gone.
  explicit Watchdog(MpiJob* job);

  // Says goodbye to all peers and waits for theirs; afterwards nothing of it is under way.
  ~Watchdog();

  // An exchange has got something from `peer`: a sign of life, too. Under the job's mutex.
  void Heard(int peer) { peers_[peer].heard_at = Clock::now(); }

 private:
  using Clock = std::chrono::steady_clock;

  struct PeerState {
    Clock::time_point heard_at;
    Clock::time_point left_at;
    bool has_left = false;
    int sign_out = 0;  // what is being sent; kLeaving is the last
    int sign_in = 0;
    MPI_Request send = MPI_REQUEST_NULL;
    MPI_Request receive = MPI_REQUEST_NULL;
  };

  void Run();
  void GiveSigns(Clock::time_point now);
  void TakeSigns(Clock::time_point now);
  void Judge(Clock::time_point now);
  bool IsAllSaid() const;

  MpiJob* job_;
  std::vector<PeerState> peers_;
  Clock::time_point next_sign_at_;
  std::atomic<bool> is_leaving_ = false;
  std::jthread thread_;
};

}  // namespace convene::comm
