// convene report: the steps of a trace as figures.
#pragma once

#include <memory>

#include "cli/command.h"

namespace convene::cli {

std::unique_ptr<Command> MakeReport();

}  // namespace convene::cli
