// `convene compare`: what a format of weights, activations or KV cache changes in a model's
// answers, and what rounding does to its weights. Speed is bench's matter.
#pragma once

#include <memory>

#include "cli/command.h"

namespace convene::cli {

std::unique_ptr<Command> MakeCompare();

}  // namespace convene::cli
