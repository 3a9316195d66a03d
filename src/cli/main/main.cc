// The executable. Everything it does is in the library, so that tests can call it.
#include <fcntl.h>
#include <unistd.h>

#include <csignal>

#include "cli/command_line.h"
#include "cli/enough_stack.h"

namespace {

// A closed standard stream would let the next file opened take its number, and a message printed
// end up in that file. Opened the wrong way round, its use is an error instead, as in coreutils.
void OccupyClosedStreams() {
  for (const int descriptor : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO}) {
    if (fcntl(descriptor, F_GETFD) != -1) continue;
    const int opened = open("/dev/null", descriptor == STDIN_FILENO ? O_WRONLY : O_RDONLY);
    if (opened != descriptor) _exit(convene::cli::kFailure);
  }
}

}  // namespace

int main(int argc, char** argv) {
  OccupyClosedStreams();
  // Whoever reads our output may leave (`| head`), which ends us quietly where standard output is
  // written (cli/output.cc); one who read messages or a result file ends nothing.
  std::signal(SIGPIPE, SIG_IGN);
  // A file that may not grow further (ulimit -f) is an error of who writes it, with a message.
  std::signal(SIGXFSZ, SIG_IGN);
  return convene::cli::RunWithEnoughStack(
      [&] { return convene::cli::RunCommandLine(argc, argv, convene::cli::Commands()); });
}
