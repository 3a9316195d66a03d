#include <fmt/format.h>
#include <fmt/ranges.h>

#include <vector>

#include "cli/completion_scripts.h"

namespace convene::cli {
namespace {

using Kind = CompletionValue::Kind;

constexpr std::string_view kBegin = R"(# Completion of {0} in bash: source <({0} completion bash)
_{0}() {{
  local word=${{COMP_WORDS[COMP_CWORD]}} before=${{COMP_WORDS[COMP_CWORD - 1]}} command= i words=
  # bash takes --option=value apart at the sign.
  if [[ $word == = ]]; then
    word=
  elif [[ $before == = ]]; then
    before=${{COMP_WORDS[COMP_CWORD - 2]}}
  fi
  for ((i = 1; i < COMP_CWORD; i++)); do
    if [[ ${{COMP_WORDS[i]}} != -* ]]; then
      command=${{COMP_WORDS[i]}}
      break
    fi
  done
  COMPREPLY=()
  case "$command $before" in
)";

constexpr std::string_view kEnd = R"(  esac
  mapfile -t COMPREPLY < <(compgen -W "$words" -- "$word")
}}
_{0}_paths() {{
  compopt -o filenames 2>/dev/null
  mapfile -t COMPREPLY < <(compgen "$1" -- "$2")
}}
complete -F _{0} {0}
)";

// What completes the value, and returns.
std::string Complete(std::string_view program, const CompletionValue& value) {
  switch (value.kind) {
    case Kind::kWords:
      return fmt::format("mapfile -t COMPREPLY < <(compgen -W '{}' -- \"$word\"); return",
                         fmt::join(value.words, " "));
    case Kind::kFile:
      return fmt::format("_{}_paths -f \"$word\"; return", program);
    case Kind::kDirectory:
      return fmt::format("_{}_paths -d \"$word\"; return", program);
    case Kind::kAny:
      return "return";
  }
  return "return";
}

}  // namespace

std::string BashCompletion(std::string_view program, std::span<const CompletionCommand> commands) {
  std::string script = fmt::format(kBegin, program);
  for (const CompletionCommand& command : commands) {
    for (const CompletionOption& option : command.options) {
      if (!option.takes_value) continue;
      std::vector<std::string> patterns;
      for (const std::string& name : option.Names()) {
        patterns.push_back(fmt::format("'{} {}'", command.name, name));
      }
      script += fmt::format("    {}) {} ;;\n", fmt::join(patterns, " | "),
                            Complete(program, option.value));
    }
  }
  script += "  esac\n  case $command in\n";
  for (const CompletionCommand& command : commands) {
    std::vector<std::string> words;
    if (command.name.empty()) {
      for (const CompletionCommand& other : commands) {
        if (!other.name.empty()) words.push_back(other.name);
      }
    }
    for (const CompletionOption& option : command.options) {
      for (std::string& name : option.Names()) words.push_back(std::move(name));
    }
    script += fmt::format("    '{}')\n", command.name);
    if (!command.arguments.empty()) {
      script += fmt::format("      if [[ $word != -* ]]; then {}; fi\n",
                            Complete(program, command.arguments.front()));
    }
    script += fmt::format("      words='{}' ;;\n", fmt::join(words, " "));
  }
  return script + fmt::format(kEnd, program);
}

}  // namespace convene::cli
