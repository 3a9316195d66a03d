#include "comm/mpi/mpi_job.h"

#include <fmt/format.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <thread>

#include "comm/under_way.h"

namespace convene::comm {
namespace {

constexpr int kStatus = 1;

}  // namespace

std::string MpiJob::NameOf(int peer) const {
  return fmt::format("rank {} (host {}, pid {})", peer, peers[peer].host, peers[peer].pid);
}

void EndJob(const MpiJob& job, const std::string& message) {
  const std::string line =
      fmt::format("convene: rank {} (host {}): {}\n", job.rank, job.peers[job.rank].host, message);
  std::fputs(line.c_str(), stderr);
  std::fflush(stderr);
  EndSilentlyOnSigterm();
  std::thread([] {
    std::this_thread::sleep_for(std::chrono::seconds(1));
    _exit(kStatus);
  }).detach();
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
