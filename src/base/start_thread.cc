#include "base/start_thread.h"

#include <fmt/format.h>

#include <system_error>
#include <utility>

namespace convene {

Result<std::jthread> StartThread(std::string_view purpose, std::function<void()> work) {
  try {
    return std::jthread(std::move(work));
  } catch (const std::system_error& error) {
    return ResourceExhausted(fmt::format(
        "cannot start {}: {}; raise the limit of processes (ulimit -u, or pids.max of the control "
        "group) or of memory (ulimit -v), or use fewer threads (--threads)",
        purpose, error.code().message()));
  }
}

}  // namespace convene
