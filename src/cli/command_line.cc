#include "cli/command_line.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <exception>
#include <new>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "base/environment.h"
#include "base/message.h"
#include "base/quote.h"
#include "cli/help_formatter.h"
#include "cli/output.h"
#include "comm/connect.h"
#include "engine/ranks.h"

namespace convene::cli {
namespace {

constexpr const char* kVersion = "convene 0.1.0";

// Of several ranks, which were given the same line, one speaks.
bool Speaks() { return RankFromLauncher().rank == 0; }

int Report(const Status& status) {
  if (status) return kSuccess;
  PrintError(status.error().message);
  return kFailure;
}

std::unique_ptr<CLI::App> MakeParser() {
  auto app = std::make_unique<CLI::App>("A Mixture-of-Experts inference engine.", "convene");
  app->require_subcommand(1);
  app->set_version_flag("--version", kVersion, "Print the version");
  app->set_help_flag("-h,--help", "Print this help");
  const auto formatter = std::make_shared<HelpFormatter>();
  formatter->column_width(32);
  app->formatter(formatter);  // of the subcommands, too
  app->footer("convene COMMAND --help shows a command's options and an example.\n");
  return app;
}

// The parser would only say that a subcommand is missing.
Status CheckCommandName(int argc, const char* const* argv, std::span<const CommandEntry> commands) {
  if (argc < 2 || argv[1][0] == '-') return {};
  std::string names;
  for (const CommandEntry& entry : commands) {
    if (std::string_view(entry.name) == argv[1]) return {};
    names += fmt::format("{}{}", names.empty() ? "" : ", ", entry.name);
  }
  return Error{fmt::format("there is no command {}; the commands are {}", Quote(argv[1]), names)};
}

struct Subcommand {
  CLI::App* parser;
  std::unique_ptr<Command> command;
};

// What the other ranks do: whatever rank 0's command tells them.
int Follow(comm::Group& ranks, const std::string& model_directory) {
  // Rank 0 has told the error.
  return engine::FollowRankZero(ranks, model_directory) ? kSuccess : kFailure;
}

int RunOnRanks(std::unique_ptr<Command> command) {
  Result<std::unique_ptr<comm::Group>> ranks = comm::Connect();
  if (!ranks) return Report(ranks.error());
  if ((*ranks)->rank() != 0) return Follow(**ranks, command->model_directory());
  command->UseRanks(ranks->get());
  const Status status = command->Run();
  const Status flushed = FlushOutput();
  command.reset();  // with it the model, whose steps the others follow
  engine::Dismiss(**ranks);
  return Report(status ? flushed : status);
}

int RunParsed(std::vector<Subcommand>& subcommands) {
  for (Subcommand& subcommand : subcommands) {
    if (!subcommand.parser->parsed()) continue;
    try {
      return RunOnRanks(std::move(subcommand.command));
    } catch (const std::bad_alloc&) {
      return Report(Error{"out of memory; free some, or use a smaller --context or --batch"});
    }
  }
  CHECK(false, "the parser accepted a line without a subcommand");
  return kUsage;
}

}  // namespace

Status Command::CheckAlone(std::string_view command) const {
  if (ranks_ == nullptr || ranks_->size() == 1) return {};
  return Error{fmt::format("{} runs on one rank, and {} were started: leave mpirun out", command,
                           ranks_->size())};
}

int RunCommandLine(int argc, const char* const* argv, std::span<const CommandEntry> commands) {
  const std::unique_ptr<CLI::App> app = MakeParser();
  std::vector<Subcommand> subcommands;
  for (const CommandEntry& entry : commands) {
    CLI::App* parser = app->add_subcommand(entry.name, entry.summary);
    parser->footer(fmt::format("Example:\n  {}\n", entry.example));
    subcommands.push_back({parser, entry.make()});
    subcommands.back().command->AddOptions(*parser);
  }
  if (const Status known = CheckCommandName(argc, argv, commands); !known) {
    if (Speaks()) PrintError(known.error().message);
    return kUsage;
  }
  try {
    app->parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    std::ostringstream help;
    std::ostringstream complaint;
    const bool is_help = app->exit(error, help, complaint) == 0;
    if (!Speaks()) return is_help ? kSuccess : kUsage;
    if (is_help) {
      const Status written = WriteOutput(help.str());
      return Report(written ? FlushOutput() : written);
    }
    PrintError(fmt::format("{} (see --help)", error.what()));
    return kUsage;
  }
  return RunParsed(subcommands);
}

}  // namespace convene::cli
