// A subcommand of convene: its options and what it does once they are parsed. Neither the table of
// all subcommands (commands.cc) nor the parsing of the command line (command_line.h).
#pragma once

#include <memory>
#include <span>
#include <string>

#include "base/result.h"
#include "cli/cli11_fwd.h"
#include "comm/group.h"

namespace convene::cli {

// The group of options that --help leaves out and --help-all shows.
inline constexpr const char* kRareOptions = "Rare options";

class Command {
 public:
  virtual ~Command() = default;

  // Declares the options, bound to members of the command. Keep the help within 40 lines. The
  // description is the summary so far; more may follow it, after a line break.
  virtual void AddOptions(CLI::App& app) = 0;

  // Results go to standard output (output.h), everything else to standard error. An error is
  // printed as one line "convene: ..." and makes the exit status 1.
  virtual Status Run() = 0;

  // Whether a Run without error left out a part of what was asked: the exit status is then 3.
  virtual bool left_out_a_part() const { return false; }

  // Where this process looks for the model that all ranks load and compute with; on another rank
  // than 0, which does not Run, that may be another place. Empty: rank 0 does all there is to do.
  virtual std::string model_directory() const { return ""; }

  // Whether one of several ranks must not even do it by itself, because it would have its share of
  // the machine alone: for commands that measure or compute long.
  virtual bool refuses_ranks() const { return false; }

  // Whether every rank Runs it: those but rank 0 write nothing, and errors are the same on all.
  virtual bool runs_on_all_ranks() const { return false; }

  // Whether rank 0 takes SIGTERM to end when its work is done, and the others with it.
  virtual bool drains() const { return false; }

  // The ranks that this process was started with, itself rank 0; before Run.
  void UseRanks(comm::Group* ranks) { ranks_ = ranks; }

 protected:
  comm::Group* ranks() const { return ranks_; }

 private:
  comm::Group* ranks_ = nullptr;
};

struct CommandEntry {
  const char* name;
  const char* summary;  // one line, shown by `convene --help` too
  const char* example;  // one or two complete command lines
  std::unique_ptr<Command> (*make)();
};

// In the order in which `convene --help` lists them. A new subcommand is one file, and one line
// each in commands.h and commands.cc.
std::span<const CommandEntry> Commands();

}  // namespace convene::cli
