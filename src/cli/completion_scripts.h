// The scripts by which bash, zsh and fish complete a program's command line. What may be completed
// is completion_words.h.
#pragma once

#include <span>
#include <string>
#include <string_view>

#include "cli/completion_words.h"

namespace convene::cli {

// `commands` as CompletionsOf gives them, of the program `program`. Each script is to be read by
// its shell at the start of a session.
std::string BashCompletion(std::string_view program, std::span<const CompletionCommand> commands);
std::string ZshCompletion(std::string_view program, std::span<const CompletionCommand> commands);
std::string FishCompletion(std::string_view program, std::span<const CompletionCommand> commands);

}  // namespace convene::cli
