// --device of commands that run a model on a GPU, or ask what one could do.
#pragma once

#include <optional>

#include "cli/cli11_fwd.h"

namespace convene::cli {

// "cpu", or "cuda" and "cuda:N" for the GPU of that number, into `gpu`.
CLI::Option* AddDeviceOption(CLI::App& app, std::optional<int>& gpu, const char* description);

}  // namespace convene::cli
