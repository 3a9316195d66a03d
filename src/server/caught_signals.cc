#include "server/caught_signals.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "base/check.h"

namespace convene::server {
namespace {

// A signal handler has nowhere else to write.
volatile int write_end = -1;

void OnSignal(int number, siginfo_t* info, void*) {
  const int error = errno;
  const CaughtSignal caught{.number = number,
                            .sender = info->si_code == SI_USER ? info->si_pid : 0};
  // A pipe takes so few bytes whole or, where it is full, not at all.
  static_cast<void>(!write(write_end, &caught, sizeof(caught)));
  errno = error;
}

}  // namespace

Status CaughtSignals::Catch() {
  CHECK(write_end < 0, "signals are caught already");
  int ends[2];
  if (pipe2(ends, O_CLOEXEC | O_NONBLOCK) != 0) {
    return Unavailable(std::string("cannot wait for signals: ") + std::strerror(errno));
  }
  read_end_ = ends[0];
  write_end = ends[1];
  struct sigaction action = {};
  action.sa_sigaction = OnSignal;
  action.sa_flags = SA_SIGINFO | SA_RESTART;
  CHECK(sigaction(SIGTERM, &action, &terminate_before_) == 0);
  CHECK(sigaction(SIGINT, &action, &interrupt_before_) == 0);
  return {};
}

CaughtSignals::~CaughtSignals() {
  if (read_end_ < 0) return;
  CHECK(sigaction(SIGTERM, &terminate_before_, nullptr) == 0);
  CHECK(sigaction(SIGINT, &interrupt_before_, nullptr) == 0);
  close(write_end);
  write_end = -1;
  close(read_end_);
}

std::optional<CaughtSignal> CaughtSignals::Take() const {
  CaughtSignal caught;
  if (read(read_end_, &caught, sizeof(caught)) != sizeof(caught)) return std::nullopt;
  return caught;
}

}  // namespace convene::server
