#include "cli/interrupt.h"

#include <unistd.h>

#include "base/check.h"

namespace convene::cli {
namespace {

constexpr int kInterruptedStatus = 128 + SIGINT;  // as a shell reports it

// A signal handler has nowhere else to write.
volatile std::sig_atomic_t is_watching = 0;
volatile std::sig_atomic_t is_pressed = 0;
volatile std::sig_atomic_t may_end_program = 0;

void OnInterrupt(int) {
  if (is_pressed != 0 && may_end_program != 0) _exit(kInterruptedStatus);
  is_pressed = 1;
}

}  // namespace

InterruptWatch::InterruptWatch(SecondPress second) {
  CHECK(is_watching == 0, "two watches for Ctrl-C");
  is_watching = 1;
  is_pressed = 0;
  may_end_program = second == SecondPress::kEndsProgram ? 1 : 0;
  struct sigaction action = {};
  action.sa_handler = OnInterrupt;
  action.sa_flags = second == SecondPress::kEndsProgram ? 0 : SA_RESTART;
  CHECK(sigaction(SIGINT, &action, &before_) == 0);
}

InterruptWatch::~InterruptWatch() {
  CHECK(sigaction(SIGINT, &before_, nullptr) == 0);
  is_watching = 0;
}

bool InterruptWatch::pressed() const { return is_pressed != 0; }

void InterruptWatch::Clear() { is_pressed = 0; }

}  // namespace convene::cli
