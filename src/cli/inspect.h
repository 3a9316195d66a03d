// `convene inspect`: what a model is, how big it is and what it would need here. Loads no weights.
#pragma once

#include <memory>

#include "cli/command.h"

namespace convene::cli {

std::unique_ptr<Command> MakeInspect();

}  // namespace convene::cli
