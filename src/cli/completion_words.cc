#include "cli/completion_words.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <string_view>
#include <utility>

namespace convene::cli {
namespace {

using Kind = CompletionValue::Kind;

// The names in "FORMAT:{auto,bf16}", as CLI11 describes an option that is one of them.
std::vector<std::string> WordsOf(std::string_view type) {
  std::vector<std::string> words;
  const size_t open = type.find('{');
  const size_t close = type.rfind('}');
  if (open == std::string_view::npos || close == std::string_view::npos) return words;
  std::string_view list = type.substr(open + 1, close - open - 1);
  while (!list.empty()) {
    const std::string_view word = list.substr(0, list.find(','));
    words.emplace_back(word);
    list.remove_prefix(std::min(word.size() + 1, list.size()));
  }
  return words;
}

CompletionValue ValueOf(const CLI::Option& option) {
  const std::string type = option.get_type_name();
  if (std::vector<std::string> words = WordsOf(type); !words.empty()) {
    return {Kind::kWords, std::move(words)};
  }
  // What a value is, or an argument that has no other name, is said in capitals.
  const std::string name = option.nonpositional() ? type : option.get_name(/*positional=*/true);
  for (const std::string_view file : {"FILE", "TRACE", "CONFIG"}) {
    if (name.starts_with(file)) return {Kind::kFile};
  }
  if (name.starts_with("DIR") || name == "MODEL") return {Kind::kDirectory};
  return {};
}

CompletionOption OptionOf(const CLI::Option& option) {
  const std::string& description = option.get_description();
  return {.long_names = option.get_lnames(),
          .short_names = option.get_snames(),
          .summary = description.substr(0, description.find('\n')),
          .takes_value = option.get_items_expected_max() > 0,
          .may_repeat = option.get_items_expected_max() > 1,
          .value = ValueOf(option)};
}

CompletionCommand CommandOf(const CLI::App& app, std::string name) {
  const std::string description = app.get_description();
  CompletionCommand command{.name = std::move(name),
                            .summary = description.substr(0, description.find('\n')),
                            .options = {},
                            .arguments = {}};
  for (const CLI::Option* option : app.get_options()) {
    if (option->nonpositional()) {
      command.options.push_back(OptionOf(*option));
    } else {
      command.arguments.push_back(ValueOf(*option));
    }
  }
  return command;
}

}  // namespace

std::vector<std::string> CompletionOption::Names() const {
  std::vector<std::string> names;
  for (const std::string& name : long_names) names.push_back("--" + name);
  for (const std::string& name : short_names) names.push_back("-" + name);
  return names;
}

std::vector<CompletionCommand> CompletionsOf(const CLI::App& app) {
  std::vector<CompletionCommand> commands = {CommandOf(app, "")};
  for (const CLI::App* command : app.get_subcommands(nullptr)) {
    commands.push_back(CommandOf(*command, command->get_name()));
  }
  return commands;
}

}  // namespace convene::cli
