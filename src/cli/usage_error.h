// What is wrong with a command line, in words, with the name that was probably meant. Does not
// parse it.
#pragma once

#include <span>

#include "base/result.h"
#include "cli/cli11_fwd.h"

namespace convene::cli {

// What is visibly wrong with `words`, the arguments behind the program's name, and would be
// understood as something else: a first word that is no command of `app`, and the name of an option
// behind a single dash ("-prompt" is -p with the value "rompt").
Status CheckWords(const CLI::App& app, std::span<const char* const> words);

// Error: options of `command`, parsed, that do not go together: two that name one file to write, or
// one to write and to read; two that write to standard output; groups of int4 beside other weights.
Status CheckTogether(CLI::App& command);

// What to say of `error`, which `app.parse` threw.
Error DescribeUsageError(const CLI::App& app, const CLI::ParseError& error);

}  // namespace convene::cli
