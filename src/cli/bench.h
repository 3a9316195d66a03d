// `convene bench`: how fast a model prefills and decodes here, beside what the machine could do.
#pragma once

#include <memory>

#include "cli/command.h"

namespace convene::cli {

std::unique_ptr<Command> MakeBench();

}  // namespace convene::cli
