// From the words of a command line to the exit status. Does not know what the subcommands do.
#pragma once

#include <span>

#include "cli/command.h"

namespace convene::cli {

enum ExitStatus {
  kSuccess = 0,
  kFailure = 1,  // the command ran and failed
  kUsage = 2,    // the command line makes no sense
  kInPart = 3,   // the command ran and left out a part: refused lines of a batch
};

// Parses `argv` (its first word is the program's name) and runs the subcommand that it names.
// Help and --version go to standard output, errors as one line "convene: ..." to standard error.
int RunCommandLine(int argc, const char* const* argv, std::span<const CommandEntry> commands);

}  // namespace convene::cli
