#include "cli/command_line.h"

#include <fmt/format.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <cstring>
#include <exception>
#include <iterator>
#include <new>
#include <optional>
#include <set>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "base/environment.h"
#include "base/message.h"
#include "base/quote.h"
#include "base/version.h"
#include "checkpoint/model_path.h"
#include "cli/chat_terminal.h"
#include "cli/help_formatter.h"
#include "cli/output.h"
#include "cli/usage_error.h"
#include "comm/agree.h"
#include "comm/connect.h"
#include "comm/under_way.h"
#include "engine/announce_load.h"
#include "engine/ranks.h"
#include "evaluate/known_costs.h"
#include "evaluate/try_plans.h"
#include "hardware/affinity.h"

namespace convene::cli {
namespace {

constexpr const char* kOutOfMemory =
    "out of memory; free some, raise the limit (ulimit -v), or use a smaller --context or --batch";

std::thread::id command_thread;  // that runs the command

int Report(const Status& status) {
  if (status) return kSuccess;
  PrintError(status.error().message);
  return kFailure;
}

// Of a line that makes no sense.
int Refuse(const Error& error) {
  PrintError(error.message);
  return kUsage;
}

// What can stand before the name of the command and behind it.
void AddGeneralOptions(CLI::App& app) {
  app.set_help_all_flag("--help-all", "Print the help with the rare options")->group(kRareOptions);
  app.add_flag_callback("-q,--quiet", SilenceNotes,
                        "Print no notes and no progress on standard error, only errors");
}

std::unique_ptr<CLI::App> MakeParser() {
  auto app = std::make_unique<CLI::App>("A Mixture-of-Experts inference engine.", "convene");
  app->require_subcommand(1);
  app->set_version_flag("--version", fmt::format("convene {}", kVersion), "Print the version");
  app->set_help_flag("-h,--help", "Print this help; --help-all: with the rare options");
  AddGeneralOptions(*app);
  const auto formatter = std::make_shared<HelpFormatter>();
  formatter->column_width(32);
  app->formatter(formatter);  // of the subcommands, too
  app->footer(
      "convene COMMAND --help shows a command's options and an example.\n"
      "Exit status: 0 all was done, 1 it failed, 2 the command line makes no sense, 3 a batch was "
      "done in\npart. What was wrong is said in one line on standard error.\n");
  return app;
}

struct Subcommand {
  CLI::App* parser;
  std::unique_ptr<Command> command;
};

// Whatever a command wants of a model, what is given as one must be able to be one.
Status CheckModel(const CLI::App& parser) {
  const CLI::Option* model = parser.get_option_no_throw("MODEL");
  if (model == nullptr || model->count() == 0) return {};
  return checkpoint::CheckModelPath(model->results().front());
}

// As "--seed 2", each value of an option by itself. Without MODEL, which may lie elsewhere on each
// host.
std::set<std::string> GivenOptions(const CLI::App& parser) {
  std::set<std::string> given;
  for (const CLI::Option* option : parser.get_options()) {
    if (!option->nonpositional()) continue;
    const bool takes_value = option->get_items_expected_max() > 0;
    for (const std::string& value : option->results())
      given.insert(option->get_name() + (takes_value ? " " + value : ""));
  }
  return given;
}

// Options of other ranks than rank 0 have no effect, which who gave them should know. Collective.
void NoteOtherOptions(comm::Group& ranks, const CLI::App& parser) {
  constexpr char kEnd = '\0';  // no word of a command line holds one
  const std::set<std::string> mine = GivenOptions(parser);
  std::string text;
  for (const std::string& option : mine) text += option + kEnd;
  const std::vector<std::string> texts = comm::GatherTexts(ranks, text, "comparing options");
  const auto other =
      std::ranges::find_if(texts, [&](const auto& of_rank) { return of_rank != text; });
  if (ranks.rank() != 0 || other == texts.end()) return;
  std::set<std::string> theirs;
  std::istringstream options(*other);
  for (std::string option; std::getline(options, option, kEnd);) theirs.insert(option);
  std::vector<std::string> shown;
  std::ranges::set_difference(theirs, mine, std::back_inserter(shown));
  const bool has_fewer = shown.empty();
  if (has_fewer) std::ranges::set_difference(mine, theirs, std::back_inserter(shown));
  constexpr size_t kLong = 60;
  for (std::string& option : shown)
    option = option.size() > kLong ? Quote(option) : Printable(option);
  PrintNote("rank {} was started with other options ({}{}); those of rank 0 count\n",
            other - texts.begin(), has_fewer ? "without " : "", fmt::join(shown, ", "));
}

// mpirun gives each of two ranks one core where nobody says otherwise, whatever the host has.
void NoteBoundRanks() {
  if (RankFromLauncher().launcher != kOpenMpi) return;
  const Result<std::vector<int>> ranks = hardware::CurrentAffinity();
  const Result<std::vector<int>> launcher = hardware::AffinityOfParent();
  if (!ranks || !launcher || ranks->size() >= launcher->size()) return;
  PrintNote(
      "the ranks of this host are bound to {} of the {} CPUs that mpirun may use; with mpirun "
      "--bind-to none they divide all of them\n",
      ranks->size(), launcher->size());
}

// What rank 0 says of ranks that the command has no use for.
Status CheckRanks(const Subcommand& chosen, int num_ranks) {
  if (num_ranks == 1 || !chosen.command->model_directory().empty()) return {};
  const std::string name = chosen.parser->get_name();
  if (chosen.command->refuses_ranks()) {
    return Error{
        fmt::format("{} runs on one rank, and {} were started: leave mpirun out", name, num_ranks)};
  }
  PrintNote("{} needs one rank, and {} were started: rank 0 does the work, the others do nothing\n",
            name, num_ranks);
  return {};
}

// What the other ranks do: whatever rank 0's command tells them.
int Follow(comm::Group& ranks, const std::string& model_directory) {
  // Rank 0 has told the error.
  const Status followed = engine::FollowRankZero(
      ranks, model_directory, evaluate::KeptOrMeasuredCosts(), evaluate::FollowTrials);
  return followed ? kSuccess : kFailure;
}

// What became of a command line.
struct ParsedLine {
  Status status = {};                    // why it makes no sense
  std::optional<std::string> help = {};  // that was asked for
  Subcommand* chosen = nullptr;          // neither
};

int RunOnRanks(const ParsedLine& line) {
  Result<std::unique_ptr<comm::Group>> ranks = comm::Connect();
  if (!ranks && line.status) return Report(ranks.error());
  if (!ranks) return Refuse(line.status.error());
  // Ranks may have been given lines of their own, and who has none would be waited for.
  const bool speaks = (*ranks)->rank() == 0;
  if (const Status all = comm::AgreeOnSuccess(**ranks, line.status); !all) {
    return speaks ? Refuse(line.status ? all.error() : line.status.error()) : kUsage;
  }
  const Status same =
      comm::AgreeOnSame(**ranks, line.help ? "help" : line.chosen->parser->get_name(),
                        "what the command line asks for");
  if (!same) return speaks ? Refuse(same.error()) : kUsage;
  if (line.help) return speaks ? Report(ShowOutput(*line.help)) : kSuccess;
  NoteOtherOptions(**ranks, *line.chosen->parser);
  if (speaks) NoteBoundRanks();
  std::unique_ptr<Command>& command = line.chosen->command;
  command->UseRanks(ranks->get());
  if (command->runs_on_all_ranks()) {
    const Status status = command->Run();
    const Status flushed = FlushOutput();
    if (!speaks) return status ? kSuccess : kFailure;
    return Report(status ? flushed : status);
  }
  if (!speaks) {
    if (command->drains()) comm::LeaveLaunchersSigtermToRankZero();
    return Follow(**ranks, command->model_directory());
  }
  Status status = CheckModel(*line.chosen->parser);
  if (status) status = CheckRanks(*line.chosen, (*ranks)->size());
  if (status) status = command->Run();
  const Status flushed = FlushOutput();
  const bool in_part = status && flushed && command->left_out_a_part();
  command.reset();  // with it the model, whose steps the others follow
  engine::Dismiss(**ranks);
  return in_part ? kInPart : Report(status ? flushed : status);
}

ParsedLine Parse(CLI::App& app, int argc, const char* const* argv,
                 std::vector<Subcommand>& subcommands) {
  const std::span<const char* const> words(argv + 1, argc > 0 ? argc - 1 : 0);
  if (const Status sensible = CheckWords(app, words); !sensible) return {.status = sensible};
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    std::ostringstream help;
    std::ostringstream complaint;
    const bool is_help = app.exit(error, help, complaint) == 0;
    if (is_help) return {.help = help.str()};
    return {.status = DescribeUsageError(app, error)};
  }
  for (Subcommand& subcommand : subcommands) {
    if (!subcommand.parser->parsed()) continue;
    return {.status = CheckTogether(*subcommand.parser), .chosen = &subcommand};
  }
  CHECK(false, "the parser accepted a line without a subcommand");
}

int ParseAndRun(int argc, const char* const* argv, std::span<const CommandEntry> commands) {
  const std::unique_ptr<CLI::App> app = MakeParser();
  std::vector<Subcommand> subcommands;
  for (const CommandEntry& entry : commands) {
    CLI::App* parser = app->add_subcommand(entry.name, entry.summary);
    parser->footer(fmt::format("Example:\n  {}\n", entry.example));
    subcommands.push_back({parser, entry.make()});
    subcommands.back().command->AddOptions(*parser);
    AddGeneralOptions(*parser);
  }
  return RunOnRanks(Parse(*app, argc, argv, subcommands));
}

// On the thread that runs the command an allocation that fails is an exception, which leaves
// nothing half done behind; on others there is nobody to catch it.
void EndWithoutMemory() {
  if (std::this_thread::get_id() == command_thread) throw std::bad_alloc();
  GiveBackTerminal();
  constexpr std::string_view kMessage = "convene: ";
  static_cast<void>(!write(STDERR_FILENO, kMessage.data(), kMessage.size()));
  static_cast<void>(!write(STDERR_FILENO, kOutOfMemory, std::strlen(kOutOfMemory)));
  static_cast<void>(!write(STDERR_FILENO, "\n", 1));
  _exit(kFailure);
}

}  // namespace

int RunCommandLine(int argc, const char* const* argv, std::span<const CommandEntry> commands) {
  command_thread = std::this_thread::get_id();
  std::set_new_handler(EndWithoutMemory);
  try {
    return ParseAndRun(argc, argv, commands);
  } catch (const std::bad_alloc&) {
    return Report(ResourceExhausted(kOutOfMemory));
  } catch (const std::exception& error) {
    // Nothing here throws; a library may.
    return Report(
        Internal(fmt::format("this should not happen, and ends the program: {}", error.what())));
  }
}

}  // namespace convene::cli
