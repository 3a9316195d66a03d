// How --help looks: CLI11's layout with descriptions broken into lines that fit a terminal. What is
// in them is said where options are declared.
#pragma once

#include <CLI/CLI.hpp>
#include <string>
#include <string_view>
#include <vector>

namespace convene::cli {

inline constexpr size_t kHelpWidth = 100;  // columns

class HelpFormatter : public CLI::Formatter {
 public:
  // The rare options only where all are asked for: --help-all.
  std::string make_help(const CLI::App* app, std::string name,
                        CLI::AppFormatMode mode) const override;
  std::string make_group(std::string group, bool is_positional,
                         std::vector<const CLI::Option*> options) const override;
  // Without what an option excludes, needs and takes: it fills lines, the description says what
  // matters, and a wrong use is told.
  std::string make_option_opts(const CLI::Option* option) const override;
  std::string make_option_desc(const CLI::Option* option) const override;
  std::string make_description(const CLI::App* app) const override;
  // The first line of a command's description is its summary, all that the list of commands shows.
  std::string make_subcommand(const CLI::App* command) const override;

 private:
  mutable bool shows_rare_options_ = false;  // in the help that is being made
};

// Each line of `text` broken at spaces so that none has more than `width` bytes, if its words
// allow.
std::string WrapText(std::string_view text, size_t width);

}  // namespace convene::cli
