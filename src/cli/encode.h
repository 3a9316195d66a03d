// The command `encode`: writes an encoder's hidden states of given inputs to a file.
#pragma once

#include <memory>

#include "cli/command.h"

namespace convene::cli {

std::unique_ptr<Command> MakeEncode();

}  // namespace convene::cli
