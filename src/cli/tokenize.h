// `convene tokenize` and `convene detokenize`: a model's tokenizer by itself. They load no weights.
#pragma once

#include <memory>

#include "cli/command.h"

namespace convene::cli {

std::unique_ptr<Command> MakeTokenize();
std::unique_ptr<Command> MakeDetokenize();

}  // namespace convene::cli
