#include <fmt/format.h>
#include <fmt/ranges.h>

#include <vector>

#include "cli/completion_scripts.h"

namespace convene::cli {
namespace {

using Kind = CompletionValue::Kind;

constexpr std::string_view kZshBegin = R"(#compdef {0}
# Completion of {0} in zsh: source <({0} completion zsh), or as a file _{0} in a folder of $fpath
_{0}() {{
  local curcontext=$curcontext state line
  local -a commands
  typeset -A opt_args
)";

constexpr std::string_view kZshEnd = R"(  esac
}}
if [[ $funcstack[1] == _{0} ]]; then
  _{0} "$@"
else
  compdef _{0} {0}
fi
)";

// `text` within single quotes, less what ends a part of a specification.
std::string EscapeForZsh(std::string_view text, std::string_view special) {
  std::string escaped;
  for (const char c : text) {
    if (c == '\'') {
      escaped += "'\\''";
      continue;
    }
    if (special.find(c) != std::string_view::npos) escaped += '\\';
    escaped += c;
  }
  return escaped;
}

std::string ActionOf(const CompletionValue& value) {
  switch (value.kind) {
    case Kind::kWords:
      return fmt::format("({})", fmt::join(value.words, " "));
    case Kind::kFile:
      return "_files";
    case Kind::kDirectory:
      return "_files -/";
    case Kind::kAny:
      return " ";
  }
  return " ";
}

// What _arguments takes: '(-p --prompt)-p[The text]:value: ', one for each name.
void AppendSpecifications(const CompletionOption& option,
                          std::vector<std::string>& specifications) {
  const std::vector<std::string> names = option.Names();
  for (const std::string& name : names) {
    std::string specification = "'";
    specification += option.may_repeat ? "*" : fmt::format("({})", fmt::join(names, " "));
    specification += name;
    // The value of a long option may follow a sign, that of a short one its letter.
    if (option.takes_value) specification += name.starts_with("--") ? "=" : "+";
    specification += fmt::format("[{}]", EscapeForZsh(option.summary, "[]:\\"));
    if (option.takes_value) specification += ":value:" + ActionOf(option.value);
    specifications.push_back(specification + "'");
  }
}

std::string ArgumentsOf(const CompletionCommand& command) {
  std::vector<std::string> specifications;
  for (const CompletionOption& option : command.options) {
    AppendSpecifications(option, specifications);
  }
  for (const CompletionValue& argument : command.arguments) {
    specifications.push_back(fmt::format("':argument:{}'", ActionOf(argument)));
  }
  return fmt::format("{}", fmt::join(specifications, " \\\n        "));
}

}  // namespace

std::string ZshCompletion(std::string_view program, std::span<const CompletionCommand> commands) {
  std::string script = fmt::format(kZshBegin, program);
  script += "  commands=(\n";
  for (const CompletionCommand& command : commands) {
    if (command.name.empty()) continue;
    script += fmt::format("    '{}:{}'\n", command.name, EscapeForZsh(command.summary, "\\"));
  }
  script += "  )\n";
  for (const CompletionCommand& command : commands) {
    if (!command.name.empty()) continue;
    script += fmt::format(
        "  _arguments -C \\\n        {} \\\n        '1:command:->command' '*::argument:->argument' "
        "&& return\n",
        ArgumentsOf(command));
  }
  script +=
      "  if [[ $state == command ]]; then\n    _describe command commands\n    return\n  fi\n"
      "  case $words[1] in\n";
  for (const CompletionCommand& command : commands) {
    if (command.name.empty()) continue;
    script += fmt::format("    {})\n      _arguments \\\n        {} ;;\n", command.name,
                          ArgumentsOf(command));
  }
  return script + fmt::format(kZshEnd, program);
}

}  // namespace convene::cli
