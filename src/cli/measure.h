// `convene measure`: this machine's peaks, printed and kept in the user's cache directory.
#pragma once

#include <memory>

#include "cli/command.h"

namespace convene::cli {

std::unique_ptr<Command> MakeMeasure();

}  // namespace convene::cli
