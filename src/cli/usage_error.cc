#include "cli/usage_error.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

#include "base/closest_name.h"
#include "base/quote.h"
#include "cli/output.h"

namespace convene::cli {
namespace {

std::vector<std::string> CommandNames(const CLI::App& app) {
  std::vector<std::string> names;
  for (const CLI::App* command : app.get_subcommands(nullptr)) names.push_back(command->get_name());
  return names;
}

const CLI::App* FindCommand(const CLI::App& app, std::string_view name) {
  for (const CLI::App* command : app.get_subcommands(nullptr)) {
    if (command->get_name() == name) return command;
  }
  return nullptr;
}

bool HasOption(const CLI::App& command, const std::string& name) {
  return command.get_option_no_throw(name) != nullptr;
}

// "; did you mean --prompt?", or nothing.
std::string MeantOption(const CLI::App& command, std::string_view typed) {
  std::vector<std::string> names;
  for (const CLI::Option* option : command.get_options()) {
    for (const std::string& name : option->get_lnames()) names.push_back(name);
  }
  const size_t first = std::min(typed.find_first_not_of('-'), typed.size());
  const std::string name = ClosestName(typed.substr(first), names);
  return name.empty() ? "" : fmt::format("; did you mean --{}?", name);
}

// The command that the line names; `app` itself if none.
const CLI::App& CommandOfApp(const CLI::App& app) {
  const std::vector<CLI::App*> parsed = app.get_subcommands();
  return parsed.empty() ? app : *parsed.front();
}

// "convene run --help", where the reader finds what there is.
std::string HelpOf(const CLI::App& app) {
  const CLI::App& command = CommandOfApp(app);
  return &command == &app ? fmt::format("{} --help", app.get_name())
                          : fmt::format("{} {} --help", app.get_name(), command.get_name());
}

// An option that does not exist explains what else is wrong: its value has become a MODEL, say.
std::string DescribeUnknownOption(const CLI::App& app) {
  for (const std::string& word : app.remaining(/*recurse=*/true)) {
    if (word.size() < 2 || word[0] != '-') continue;
    const std::string name = word.substr(0, word.find('='));
    const CLI::App& command = CommandOfApp(app);
    if (HasOption(command, name)) {
      return fmt::format("{} stands in front of the command; options follow its name", name);
    }
    return fmt::format("there is no option {}{}", Quote(name), MeantOption(command, name));
  }
  return "";
}

// The value of an option that is not what it takes, from the parser's "Could not convert: --a = b".
std::string DescribeConversion(std::string_view what) {
  constexpr std::string_view kPrefix = "Could not convert: ";
  if (what.starts_with(kPrefix)) what.remove_prefix(kPrefix.size());
  const size_t equals = what.find(" = ");
  if (equals == std::string_view::npos) return std::string(what);
  const std::string value(what.substr(equals + 3));
  char* end = nullptr;
  std::strtod(value.c_str(), &end);
  const bool is_number = !value.empty() && *end == 0;
  return fmt::format(
      "{} cannot be {}: {}", what.substr(0, equals), Quote(value),
      is_number ? "it is too large, or not a whole number in plain digits" : "it is not a number");
}

// In words, what the parser makes of it.
std::string DescribeParseError(const CLI::ParseError& error) {
  const std::string_view what = error.what();
  if (dynamic_cast<const CLI::ConversionError*>(&error) != nullptr) return DescribeConversion(what);
  return std::string(what);
}

// Where writing to `path` ends: links are followed, also one to a file that is not there yet.
std::filesystem::path WrittenPlace(std::filesystem::path path) {
  constexpr int kMostLinks = 40;  // as the system follows
  std::error_code error;
  for (int links = 0; links < kMostLinks && is_symlink(path, error); ++links) {
    path = path.parent_path() / read_symlink(path, error);
  }
  std::filesystem::path place = weakly_canonical(path, error);
  return error ? path : place;
}

// --text is the path of a text where it takes a FILE, and the text itself elsewhere; --out may be a
// directory. Words without a dash name files in nearly all commands.
bool NamesFile(const CLI::Option& option) {
  const std::string type = option.get_type_name();
  return type.empty() ? option.get_positional() : type.starts_with("FILE");
}

bool IsWritten(CLI::Option& option) {
  try {
    option.get_validator(kWritableFile);
    return true;
  } catch (const CLI::OptionNotFound&) {
    return false;
  }
}

class NamedFiles {
 public:
  // Error: another option that has been seen names the same file, and this one is written.
  Status See(const std::string& name, const std::string& given, bool is_written) {
    if (given == "-") return is_written ? SeeOutput(name) : Status();
    const std::filesystem::path path = WrittenPlace(given);
    std::error_code error;
    // Streams and devices may have several users.
    if (exists(path, error) && !is_regular_file(path, error)) return {};
    for (const auto& [other, other_path] : seen_) {
      // Two names of one file are found by the second question, which only files that are there
      // answer.
      if (!is_written || (path != other_path && !equivalent(path, other_path, error))) continue;
      return Error{fmt::format("{} and {} both name {}; give each a file of its own", other, name,
                               Printable(given))};
    }
    seen_.emplace_back(name, path);
    return {};
  }

 private:
  Status SeeOutput(const std::string& name) {
    if (!output_.empty()) {
      return Error{fmt::format("{} and {} cannot both be standard output; give one of them a file",
                               output_, name)};
    }
    output_ = name;
    return {};
  }

  std::vector<std::pair<std::string, std::filesystem::path>> seen_;
  std::string output_;  // the option that writes to standard output
};

// What is read whole and may be replaced by what is made of it.
struct Updated {
  const char* command;
  const char* read;
};
constexpr Updated kUpdated[] = {{"measure", "--profile"}, {"plan", "--present"}};

bool MayBeUpdated(const CLI::App& command, const CLI::Option& option) {
  return std::ranges::any_of(kUpdated, [&](const Updated& each) {
    return command.get_name() == each.command && option.get_name() == each.read;
  });
}

Status CheckFiles(CLI::App& command) {
  NamedFiles files;
  for (const bool is_written : {false, true}) {  // what is read first
    for (CLI::Option* option : command.get_options()) {
      if (option->count() == 0 || !NamesFile(*option) || IsWritten(*option) != is_written) continue;
      if (MayBeUpdated(command, *option)) continue;
      for (const std::string& given : option->results()) {
        if (Status seen = files.See(option->get_name(), given, is_written); !seen) return seen;
      }
    }
  }
  return {};
}

// Groups of columns that the chosen weights do not have.
Status CheckInt4Group(const CLI::App& command) {
  const CLI::Option* group = command.get_option_no_throw("--int4-group");
  if (group == nullptr || group->count() == 0) return {};
  const CLI::Option* weights = command.get_option("--weights");
  if (weights->count() == 0) return {};
  const std::string& format = weights->results().front();
  if (format == "auto" || format == "int4") return {};
  return Error{fmt::format(
      "--int4-group goes with int4 weights, and these are {}; leave it out, or use --weights int4",
      format)};
}

}  // namespace

Status CheckWords(const CLI::App& app, std::span<const char* const> words) {
  const CLI::App* command = nullptr;
  for (const std::string_view word : words) {
    if (word == "--") break;
    if (command == nullptr && !word.starts_with('-')) {
      command = FindCommand(app, word);
      if (command == nullptr) {
        const std::vector<std::string> names = CommandNames(app);
        return Error{fmt::format("there is no command {}{}; the commands are {}", Quote(word),
                                 DidYouMean(word, names), fmt::join(names, ", "))};
      }
      continue;
    }
    if (command == nullptr && word.starts_with("--") && !HasOption(app, std::string(word))) {
      break;  // what follows may be its value; it is an error of its own
    }
    if (command == nullptr || word.size() < 3 || word[0] != '-' || word[1] == '-') continue;
    const std::string name = fmt::format("-{}", word.substr(0, word.find('=')));
    if (!HasOption(*command, name)) continue;
    return Error{fmt::format("there is no option {}; did you mean {}?", Quote(word), name)};
  }
  return {};
}

Status CheckTogether(CLI::App& command) {
  const Status files = CheckFiles(command);
  return files ? CheckInt4Group(command) : files;
}

Error DescribeUsageError(const CLI::App& app, const CLI::ParseError& error) {
  std::string message = DescribeUnknownOption(app);
  if (message.empty()) message = DescribeParseError(error);
  return Error{fmt::format("{} (see {})", message, HelpOf(app))};
}

}  // namespace convene::cli
