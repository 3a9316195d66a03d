#include "cli/help_formatter.h"

#include <fmt/format.h>

#include <algorithm>

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

std::string HelpFormatter::make_option_opts(const CLI::Option* option) const {
  const std::string opts = CLI::Formatter::make_option_opts(option);
  return opts.substr(0, opts.find(" Excludes:"));
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
