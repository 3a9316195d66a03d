#include "cli/help_formatter.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <utility>

#include "cli/command.h"

namespace convene::cli {

std::string WrapText(std::string_view text, size_t width) {
  std::string wrapped;
  size_t column = 0;
  while (!text.empty()) {
    const size_t word_end = std::min(text.find_first_of(" \n"), text.size());
    if (column > 0 && column + 1 + word_end > width) {
      wrapped += '\n';
      column = 0;
    } else if (column > 0) {
      wrapped += ' ';
      ++column;
    }
    wrapped += text.substr(0, word_end);
    column += word_end;
    if (word_end < text.size() && text[word_end] == '\n') {
      wrapped += '\n';
      column = 0;
    }
    text.remove_prefix(std::min(word_end + 1, text.size()));
  }
  return wrapped;
}

std::string HelpFormatter::make_help(const CLI::App* app, std::string name,
                                     CLI::AppFormatMode mode) const {
  // Of the commands in the list of all, which --help-all shows whole, the mode is Sub.
  shows_rare_options_ = mode != CLI::AppFormatMode::Normal;
  std::string help = CLI::Formatter::make_help(app, std::move(name), mode);
  // The empty line in front of a group that is left out.
  if (const size_t gap = help.find("\n\n\n"); gap != std::string::npos) help.erase(gap, 1);
  return help;
}

std::string HelpFormatter::make_group(std::string group, bool is_positional,
                                      std::vector<const CLI::Option*> options) const {
  if (group == kRareOptions && !shows_rare_options_) return "";
  return CLI::Formatter::make_group(std::move(group), is_positional, std::move(options));
}

std::string HelpFormatter::make_option_opts(const CLI::Option* option) const {
  std::string opts = CLI::Formatter::make_option_opts(option);
  opts.resize(std::min({opts.find(" Excludes:"), opts.find(" Needs:"), opts.size()}));
  const size_t values = opts.find(":{");
  const size_t values_end = opts.find('}', values);
  if (values_end != std::string::npos) opts.erase(values, values_end - values + 1);
  return opts;
}

std::string HelpFormatter::make_option_desc(const CLI::Option* option) const {
  return WrapText(CLI::Formatter::make_option_desc(option), kHelpWidth - get_column_width());
}

std::string HelpFormatter::make_description(const CLI::App* app) const {
  return WrapText(CLI::Formatter::make_description(app), kHelpWidth);
}

std::string HelpFormatter::make_subcommand(const CLI::App* command) const {
  const std::string description = command->get_description();
  return fmt::format("  {:<{}}{}\n", command->get_name(), get_column_width() - 2,
                     description.substr(0, description.find('\n')));
}

}  // namespace convene::cli
