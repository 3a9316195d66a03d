// What a shell may complete on a command line, read from the commands' definitions. Knows no shell.
#pragma once

#include <string>
#include <vector>

#include "cli/cli11_fwd.h"

namespace convene::cli {

// What can stand where a value is expected: one of `words`, if there are any, else a file or a
// directory, else what only the user knows.
struct CompletionValue {
  enum class Kind { kWords, kFile, kDirectory, kAny };
  Kind kind = Kind::kAny;
  std::vector<std::string> words = {};
};

struct CompletionOption {
  std::vector<std::string> long_names;   // without dashes
  std::vector<std::string> short_names;  // letters
  std::string summary;                   // one line
  bool takes_value = false;
  bool may_repeat = false;
  CompletionValue value = {};

  std::vector<std::string> Names() const;  // with dashes, long ones first
};

struct CompletionCommand {
  std::string name;  // empty: what stands before the name of a command
  std::string summary;
  std::vector<CompletionOption> options;
  std::vector<CompletionValue> arguments;  // without a name, in their order
};

// The options that stand before a command, then every command, in the order of the help. The rare
// options are among them: nobody remembers their names.
std::vector<CompletionCommand> CompletionsOf(const CLI::App& app);

}  // namespace convene::cli
