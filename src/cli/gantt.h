// convene gantt: a step of a trace as a picture.
#pragma once

#include <memory>

#include "cli/command.h"

namespace convene::cli {

std::unique_ptr<Command> MakeGantt();

}  // namespace convene::cli
