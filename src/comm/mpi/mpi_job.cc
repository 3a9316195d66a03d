#include "comm/mpi/mpi_job.h"

#include <fmt/format.h>
#include <spawn.h>
#include <unistd.h>

#include <csignal>

#include "base/message.h"
#include "comm/under_way.h"

namespace convene::comm {
namespace {

constexpr int kStatus = 1;

// MPI_Abort leaves the end of the job to the launcher, and OpenMPI's waits for the daemon of a host
// that has been cut off for as long as TCP does: minutes. A process that outlives this one gives it
// two and a half seconds, in which it ends all that it can reach.
void KillLauncherIfItStays() {
  char script[] =
      "for i in 1 2 3 4 5 6 7 8 9 10 11 12; do sleep 0.2; [ -e /proc/$0 ] || exit; done;"
      "case $(cat /proc/$0/comm) in mpirun|mpiexec|orterun|orted|prterun|prted) kill -9 $0;; esac";
  char shell[] = "/bin/sh";
  char option[] = "-c";
  std::string launcher = fmt::to_string(getppid());
  char* arguments[] = {shell, option, script, launcher.data(), nullptr};
  posix_spawnattr_t attributes;
  posix_spawnattr_init(&attributes);
  // What ends this process's group is not meant for it.
  posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETSID);
  pid_t pid = 0;
  posix_spawn(&pid, shell, nullptr, &attributes, arguments, environ);
  posix_spawnattr_destroy(&attributes);
}

}  // namespace

std::string MpiJob::NameOf(int peer) const {
  const Peer& named = peers[peer];
  return fmt::format("rank {} ({}{}host {}, pid {})", peer, named.role,
                     named.role.empty() ? "" : ", ", named.host, named.pid);
}

std::string MpiJob::OwnName() const {
  const Peer& own = peers[rank];
  return fmt::format("rank {} ({}{}host {})", rank, own.role, own.role.empty() ? "" : ", ",
                     own.host);
}

void EndJob(const MpiJob& job, const std::string& message) {
  PrintError(fmt::format("{}: {}", job.OwnName(), message));
  EndSilentlyOnSigterm();
  KillLauncherIfItStays();
  // A clock, not a thread: that could be refused.
  std::signal(SIGALRM, [](int) { _exit(kStatus); });
  alarm(1);
  MPI_Abort(MPI_COMM_WORLD, kStatus);
  _exit(kStatus);
}

void CheckMpi(const MpiJob& job, int code, const std::string& doing) {
  if (code == MPI_SUCCESS) return;
  char text[MPI_MAX_ERROR_STRING] = {};
  int length = 0;
  MPI_Error_string(code, text, &length);
  EndJob(job, fmt::format("{} failed: {}", doing, text));
}

}  // namespace convene::comm
