// The command `quantize`: a model directory with its weights packed in a format, ready to be
// mapped.
#pragma once

#include <memory>

#include "cli/command.h"

namespace convene::cli {

std::unique_ptr<Command> MakeQuantize();

}  // namespace convene::cli
