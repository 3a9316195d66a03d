// `convene batch`: a file of OpenAI batch requests, many at a time, results appended as they
// finish; a rerun goes on where the last one stopped.
#pragma once

#include <memory>

#include "cli/command.h"

namespace convene::cli {

std::unique_ptr<Command> MakeBatch();

}  // namespace convene::cli
