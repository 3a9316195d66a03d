#include "comm/mpi/watchdog.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>

#include "base/start_thread.h"
#include "comm/under_way.h"

namespace convene::comm {
namespace {

using std::chrono::milliseconds;

constexpr int kAlive = 1;
constexpr int kLeaving = 2;

constexpr milliseconds kSignPeriod{500};
constexpr milliseconds kRound{100};               // between two looks at the peers
constexpr milliseconds kRoundLeaving{2};          // while leaving: it is what ends are waited for
constexpr milliseconds kLongestSilence{6000};     // and up to 2 s until the launcher has ended all
constexpr milliseconds kGraceAfterLeaving{3000};  // for what is still on its way
constexpr milliseconds kLongestOwnGap{2000};

double Seconds(std::chrono::steady_clock::duration time) {
  return std::chrono::duration<double>(time).count();
}

}  // namespace

Watchdog::Watchdog(MpiJob* job) : job_(job), peers_(job->size), next_sign_at_(Clock::now()) {
  for (PeerState& peer : peers_) peer.heard_at = Clock::now();
  Result<std::jthread> thread = StartThread("the thread of signs of life", [this] { Run(); });
  if (!thread) EndJob(*job_, thread.error().message);
  thread_ = *std::move(thread);
}

Watchdog::~Watchdog() {
  is_leaving_ = true;
  thread_.join();
}

void Watchdog::Run() {
  const pid_t launcher = getppid();
  Clock::time_point last_round = Clock::now();
  while (true) {
    std::this_thread::sleep_for(is_leaving_ ? kRoundLeaving : kRound);
    // Another thread that stays in MPI for seconds has met a bug of the library or of the network
    // below it; waiting for it would hide that.
    if (!job_->mutex.try_lock_for(kLongestSilence)) {
      char under_way[320];
      DescribeUnderWay(under_way, sizeof(under_way));
      EndJob(*job_, fmt::format("a call of MPI does not return, while {}", under_way));
    }
    const std::lock_guard lock(job_->mutex, std::adopt_lock);
    const Clock::time_point now = Clock::now();
    // If this process itself was stopped or had no core, it has not listened: peers get their time
    // anew.
    if (now - last_round > kLongestOwnGap)
      for (PeerState& peer : peers_) peer.heard_at = std::max(peer.heard_at, now);
    last_round = now;
    TakeSigns(now);
    GiveSigns(now);
    Judge(now);
    if (getppid() != launcher) EndJob(*job_, "the launcher of this rank has gone, and it ends too");
    if (is_leaving_ && IsAllSaid()) return;
  }
}

void Watchdog::GiveSigns(Clock::time_point now) {
  const bool is_due = now >= next_sign_at_;
  if (is_due) next_sign_at_ = now + kSignPeriod;
  for (int rank = 0; rank < job_->size; ++rank) {
    PeerState& peer = peers_[rank];
    if (rank == job_->rank) continue;
    // While one is on its way another would tell nothing new.
    int is_sent = 0;
    CheckMpi(*job_, MPI_Test(&peer.send, &is_sent, MPI_STATUS_IGNORE), "giving a sign of life");
    if (!is_sent || peer.sign_out == kLeaving || !(is_due || is_leaving_)) continue;
    peer.sign_out = is_leaving_ ? kLeaving : kAlive;
    CheckMpi(*job_, MPI_Isend(&peer.sign_out, 1, MPI_INT, rank, 0, job_->signs_of_life, &peer.send),
             "giving a sign of life");
  }
}

void Watchdog::TakeSigns(Clock::time_point now) {
  for (int rank = 0; rank < job_->size; ++rank) {
    PeerState& peer = peers_[rank];
    if (rank == job_->rank) continue;
    while (!peer.has_left) {
      if (peer.receive == MPI_REQUEST_NULL)
        CheckMpi(*job_,
                 MPI_Irecv(&peer.sign_in, 1, MPI_INT, rank, 0, job_->signs_of_life, &peer.receive),
                 "taking signs of life");
      int is_there = 0;
      CheckMpi(*job_, MPI_Test(&peer.receive, &is_there, MPI_STATUS_IGNORE),
               "taking signs of life");
      if (!is_there) break;
      peer.heard_at = now;
      peer.has_left = peer.sign_in == kLeaving;
      peer.left_at = now;
    }
  }
}

void Watchdog::Judge(Clock::time_point now) {
  for (int rank = 0; rank < job_->size; ++rank) {
    const PeerState& peer = peers_[rank];
    if (rank == job_->rank) continue;
    if (!peer.has_left && now - peer.heard_at > kLongestSilence) {
      char under_way[320];
      DescribeUnderWay(under_way, sizeof(under_way));
      EndJob(*job_, fmt::format("no sign of life from {} for {:.1f} s, while this rank was {}; it "
                                "has died, hangs, or its host cannot be reached",
                                job_->NameOf(rank), Seconds(now - peer.heard_at), under_way));
    }
    if (peer.has_left && now - std::max(peer.left_at, peer.heard_at) > kGraceAfterLeaving) {
      const std::string what = UnderWayWith(rank);
      if (!what.empty())
        EndJob(*job_, fmt::format("{} has ended its work and left, but `{}` waits for it",
                                  job_->NameOf(rank), what));
    }
  }
}

bool Watchdog::IsAllSaid() const {
  return std::ranges::all_of(peers_, [this](const PeerState& peer) {
    if (&peer == &peers_[job_->rank]) return true;
    return peer.has_left && peer.sign_out == kLeaving && peer.send == MPI_REQUEST_NULL;
  });
}

}  // namespace convene::comm
