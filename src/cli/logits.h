// `convene logits`: the model's raw output for given tokens, to compare with other engines.
// It needs no tokenizer.
#pragma once

#include <memory>

#include "cli/command.h"

namespace convene::cli {

std::unique_ptr<Command> MakeLogits();

}  // namespace convene::cli
