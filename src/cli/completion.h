// `convene completion`: scripts that let a shell complete commands, options and their values, made
// from the commands' definitions.
#pragma once

#include <memory>

#include "cli/command.h"

namespace convene::cli {

std::unique_ptr<Command> MakeCompletion();

}  // namespace convene::cli
