// `convene run`: one prompt, continued as the model would; the text streams to standard output.
#pragma once

#include <memory>

#include "cli/command.h"

namespace convene::cli {

std::unique_ptr<Command> MakeRun();

}  // namespace convene::cli
