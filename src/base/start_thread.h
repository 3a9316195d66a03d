// Starts threads, which the system may refuse: a limit of processes or of memory is an error to
// tell, not the end of the program.
#pragma once

#include <functional>
#include <string_view>
#include <thread>

#include "base/result.h"

namespace convene {

// A thread that runs `work`. `purpose`: "thread 3 of 8", for the error, which says why there is
// none and what to change.
Result<std::jthread> StartThread(std::string_view purpose, std::function<void()> work);

}  // namespace convene
