#include "cli/chat_terminal.h"

#include <termios.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <iterator>
#include <string_view>

#include "base/check.h"
#include "base/environment.h"

namespace convene::cli {
namespace {

constexpr std::string_view kMarkPastes = "\x1b[?2004h";
constexpr std::string_view kDoNotMarkPastes = "\x1b[?2004l";

constexpr int kFatalSignals[] = {SIGINT,  SIGTERM, SIGHUP, SIGQUIT, SIGABRT,
                                 SIGSEGV, SIGBUS,  SIGFPE, SIGILL};

// What signal handlers need lies where they can reach it.
struct TerminalState {
  termios before;
  termios ours;
  int descriptor = -1;
  bool marks_pastes = false;
  volatile std::sig_atomic_t is_ours = 0;
  volatile std::sig_atomic_t was_continued = 0;
  volatile std::sig_atomic_t was_resized = 0;
  struct sigaction fatal_before[std::size(kFatalSignals)];
  struct sigaction stop_before;
  struct sigaction continue_before;
  struct sigaction resize_before;
};
TerminalState state;

// Safe in a signal handler, as what follows. A terminal that does not listen has no way to say so.
void Send(std::string_view text) {
  if (!state.marks_pastes) return;
  [[maybe_unused]] const ssize_t written = write(state.descriptor, text.data(), text.size());
}

void Take() {
  tcsetattr(STDIN_FILENO, TCSANOW, &state.ours);
  Send(kMarkPastes);
  state.is_ours = 1;
}

// Does what would have been done without us, on the terminal as it was.
void OnFatalSignal(int signal, siginfo_t* info, void*) {
  const int error = errno;
  GiveBackTerminal();
  for (size_t i = 0; i < std::size(kFatalSignals); ++i) {
    if (kFatalSignals[i] != signal) continue;
    sigaction(signal, &state.fatal_before[i], nullptr);
    // A handler that knows no answer may call the one before it, which was this one.
    state.fatal_before[i] = {};
  }
  // One that an instruction has caused comes again with it, and says where; one that was sent, as
  // soon as this handler has returned.
  if (info->si_code <= 0) raise(signal);
  errno = error;
}

// In front of the handlers that there are. What is ignored stays ignored (nohup).
void HandleFatalSignals() {
  for (size_t i = 0; i < std::size(kFatalSignals); ++i) {
    struct sigaction now;
    CHECK(sigaction(kFatalSignals[i], nullptr, &now) == 0);
    if (now.sa_handler == SIG_IGN || now.sa_sigaction == OnFatalSignal) continue;
    state.fatal_before[i] = now;
    struct sigaction action = {};
    action.sa_sigaction = OnFatalSignal;
    action.sa_flags = SA_RESTART | SA_SIGINFO;  // nobody else shall see a call interrupted
    CHECK(sigaction(kFatalSignals[i], &action, nullptr) == 0);
  }
}

void OnContinue(int) {
  const int error = errno;
  Take();
  state.was_continued = 1;
  errno = error;
}

void OnResize(int) { state.was_resized = 1; }

void OnStop(int signal) {
  const int error = errno;
  GiveBackTerminal();
  struct sigaction here;
  struct sigaction stop = {};
  stop.sa_handler = SIG_DFL;
  sigaction(signal, &stop, &here);
  sigset_t mask;
  sigemptyset(&mask);
  sigaddset(&mask, signal);
  sigset_t mask_before;
  raise(signal);
  pthread_sigmask(SIG_UNBLOCK, &mask, &mask_before);  // here it stops
  pthread_sigmask(SIG_SETMASK, &mask_before, nullptr);
  sigaction(signal, &here, nullptr);
  errno = error;
}

// What is ignored stays ignored (nohup).
void Handle(int signal, void (*handler)(int), struct sigaction* before) {
  CHECK(sigaction(signal, nullptr, before) == 0);
  if (before->sa_handler == SIG_IGN) return;
  struct sigaction action = {};
  action.sa_handler = handler;
  action.sa_flags = SA_RESTART;
  CHECK(sigaction(signal, &action, nullptr) == 0);
}

}  // namespace

void GiveBackTerminal() {
  if (state.is_ours == 0) return;
  state.is_ours = 0;
  Send(kDoNotMarkPastes);
  tcsetattr(STDIN_FILENO, TCSANOW, &state.before);
}

ChatTerminal::ChatTerminal() : descriptor_(STDIN_FILENO) {
  CHECK(state.is_ours == 0, "two conversations on a terminal");
  for (const int descriptor : {STDOUT_FILENO, STDERR_FILENO}) {
    if (isatty(descriptor) == 1) descriptor_ = descriptor;
  }
  if (tcgetattr(STDIN_FILENO, &state.before) != 0) return;  // hung up meanwhile: reads will end
  state.ours = state.before;
  state.ours.c_lflag &= ~static_cast<tcflag_t>(ICANON | ECHO);
  state.ours.c_iflag &= ~static_cast<tcflag_t>(ICRNL);
  state.ours.c_cc[VMIN] = 1;
  state.ours.c_cc[VTIME] = 0;
  state.descriptor = descriptor_;
  const std::string kind = EnvironmentVariable("TERM").value_or("dumb");
  state.marks_pastes = kind != "dumb";
  for (size_t i = 0; i < std::size(kFatalSignals); ++i) {
    CHECK(sigaction(kFatalSignals[i], nullptr, &state.fatal_before[i]) == 0);
  }
  HandleFatalSignals();
  Handle(SIGTSTP, OnStop, &state.stop_before);
  Handle(SIGCONT, OnContinue, &state.continue_before);
  Handle(SIGWINCH, OnResize, &state.resize_before);
  Take();
}

ChatTerminal::~ChatTerminal() {
  if (state.descriptor < 0) return;
  sigaction(SIGCONT, &state.continue_before, nullptr);
  GiveBackTerminal();
  for (size_t i = 0; i < std::size(kFatalSignals); ++i) {
    sigaction(kFatalSignals[i], &state.fatal_before[i], nullptr);
  }
  sigaction(SIGTSTP, &state.stop_before, nullptr);
  sigaction(SIGWINCH, &state.resize_before, nullptr);
  state.descriptor = -1;
}

void ChatTerminal::StandBeforeNewHandlers() {
  if (state.descriptor >= 0) HandleFatalSignals();
}

void ChatTerminal::Stop() { kill(0, SIGTSTP); }

bool ChatTerminal::TakeContinued() {
  const bool was = state.was_continued != 0;
  state.was_continued = 0;
  return was;
}

bool ChatTerminal::TakeResized() {
  const bool was = state.was_resized != 0;
  state.was_resized = 0;
  return was;
}

}  // namespace convene::cli
