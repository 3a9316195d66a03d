// SIGTERM and SIGINT as something to read, with who sent them: a launcher that ends its job sends
// what an administrator sends, and waits for less long.
#pragma once

#include <csignal>
#include <optional>

#include "base/result.h"

namespace convene::server {

struct CaughtSignal {
  int number = 0;  // SIGTERM or SIGINT
  int sender =
      0;  // its process; 0: the kernel (a key of the terminal), or one of another namespace
};

// One at a time in a process. While it lives both signals come here and do nothing else.
class CaughtSignals {
 public:
  // Error: the system gives no pipe.
  Status Catch();
  CaughtSignals() = default;
  ~CaughtSignals();
  CaughtSignals(const CaughtSignals&) = delete;
  CaughtSignals& operator=(const CaughtSignals&) = delete;

  // Can be read from once there is one. Only Take reads.
  int descriptor() const { return read_end_; }
  // The oldest that is left; nothing: none.
  std::optional<CaughtSignal> Take() const;

 private:
  int read_end_ = -1;
  struct sigaction terminate_before_ = {};
  struct sigaction interrupt_before_ = {};
};

}  // namespace convene::server
