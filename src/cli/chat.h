// `convene chat`: a conversation in a terminal, or with one line of standard input per turn.
#pragma once

#include <memory>

#include "cli/command.h"

namespace convene::cli {

std::unique_ptr<Command> MakeChat();

}  // namespace convene::cli
