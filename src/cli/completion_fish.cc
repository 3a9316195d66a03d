#include <fmt/format.h>
#include <fmt/ranges.h>

#include "cli/completion_scripts.h"

namespace convene::cli {
namespace {

using Kind = CompletionValue::Kind;

// `text` within single quotes.
std::string Quoted(std::string_view text) {
  std::string quoted = "'";
  for (const char c : text) {
    if (c == '\'' || c == '\\') quoted += '\\';
    quoted += c;
  }
  return quoted + "'";
}

// The arguments of fish's `complete` for a value of this kind.
std::string ValueArguments(const CompletionValue& value) {
  switch (value.kind) {
    case Kind::kWords:
      return fmt::format(" -a {}", Quoted(fmt::format("{}", fmt::join(value.words, " "))));
    case Kind::kFile:
      return " -F";
    case Kind::kDirectory:
      return " -a '(__fish_complete_directories)'";
    case Kind::kAny:
      return "";
  }
  return "";
}

}  // namespace

std::string FishCompletion(std::string_view program, std::span<const CompletionCommand> commands) {
  std::string script = fmt::format(
      "# Completion of {0} in fish: {0} completion fish | source\ncomplete -c {0} -f\n", program);
  for (const CompletionCommand& command : commands) {
    const bool is_before = command.name.empty();
    const std::string when = is_before
                                 ? "__fish_use_subcommand"
                                 : fmt::format("'__fish_seen_subcommand_from {}'", command.name);
    if (!is_before) {
      script += fmt::format("complete -c {} -n __fish_use_subcommand -a {} -d {}\n", program,
                            command.name, Quoted(command.summary));
    }
    for (const CompletionOption& option : command.options) {
      script += fmt::format("complete -c {} -n {}", program, when);
      for (const std::string& name : option.long_names) script += " -l " + name;
      for (const std::string& name : option.short_names) script += " -s " + name;
      if (option.takes_value) {
        script += (option.value.kind == Kind::kFile ? " -r" : " -x") + ValueArguments(option.value);
      }
      script += fmt::format(" -d {}\n", Quoted(option.summary));
    }
    for (const CompletionValue& argument : command.arguments) {
      script += fmt::format("complete -c {} -n {}{}\n", program, when, ValueArguments(argument));
    }
  }
  return script;
}

}  // namespace convene::cli
