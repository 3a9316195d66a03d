// How --help looks: CLI11's layout with descriptions broken into lines that fit a terminal. What is
// in them is said where options are declared.
#pragma once

#include <CLI/CLI.hpp>
#include <string>
#include <string_view>

namespace convene::cli {

inline constexpr size_t kHelpWidth = 100;  // columns

class HelpFormatter : public CLI::Formatter {
 public:
  // Without what an option excludes: it takes a line, and a wrong use is told.
  std::string make_option_opts(const CLI::Option* option) const override;
  std::string make_option_desc(const CLI::Option* option) const override;
  std::string make_description(const CLI::App* app) const override;
  // The first line of a command's description is its summary, all that the list of commands shows.
  std::string make_subcommand(const CLI::App* command) const override;
};

// Each line of `text` broken at spaces so that none has more than `width` bytes, if its words
// allow.
std::string WrapText(std::string_view text, size_t width);

}  // namespace convene::cli
