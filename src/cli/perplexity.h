// `convene perplexity`: how well a model predicts a text, comparable with other engines: windows
// that do not overlap, each scored from its second token on.
#pragma once

#include <memory>

#include "cli/command.h"

namespace convene::cli {

std::unique_ptr<Command> MakePerplexity();

}  // namespace convene::cli
