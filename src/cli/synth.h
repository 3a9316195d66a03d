// `convene synth`: a checkpoint of a real model's shape with random weights, for performance work.
// The weights themselves are checkpoint/synthesize.h.
#pragma once

#include <memory>

#include "cli/command.h"

namespace convene::cli {

std::unique_ptr<Command> MakeSynth();

}  // namespace convene::cli
