// Stacks of a known size, whatever limit the process was started with (`ulimit -s`): parsers of
// nested files, regular expressions and libraries need more than the least that a system allows.
#pragma once

#include <functional>

namespace convene::cli {

// Calls `run` on this thread, with a stack of 8 MiB if the limit is lower, and returns what it
// returns. Threads that are started from now on get as much, too. Once in a process.
int RunWithEnoughStack(const std::function<int()>& run);

}  // namespace convene::cli
