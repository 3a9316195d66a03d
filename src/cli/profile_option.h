// The options that say where costs are from (a profile's file, a preset, or what was kept of this
// machine) and how much memory ranks have there.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "base/result.h"
#include "cli/cli11_fwd.h"
#include "cost/machine_profile.h"
#include "planner/plan_question.h"

namespace convene::cli {

// `profile` must outlive the parser; it stays empty where the kept one is meant.
void AddProfileOption(CLI::App& app, std::string& profile);

// With costs of steps, or of a device and its operators where there are none (presets, and what
// convene import-profile writes). Errors: no such file and no such preset, another version, a file
// with neither; they say how to measure a profile on so many ranks.
Result<cost::MachineProfile> LoadProfile(const std::string& profile, int num_ranks);

// The same of any profile, also of one that knows nothing but what a machine is.
Result<cost::MachineProfile> FindProfile(const std::string& profile, int num_ranks);

// Of operators that were measured on another device, or at other rates: which ones, and where.
// Empty: of none.
std::string WordsOfRelatives(const cost::MachineProfile& profile);

// --disk-rate, which the profile need not know then.
void AddDiskRateOption(CLI::App& app, std::optional<double>& gigabytes_per_second);

// --memory-per-rank, in GiB, or --memory-budget with a unit.
struct MemoryOfRanks {
  std::vector<uint64_t> bytes = {};  // of each rank, or one number for all; none: not given
  // All that a process takes is of it, and what it takes beside the plan is no rank's to plan with.
  bool is_budget = false;

  bool is_given() const { return !bytes.empty(); }
  // As the commands that run a model take it (--memory-budget): of processes of so many ranks.
  std::vector<uint64_t> budgets(int num_ranks) const;
  // With how much of a budget the program takes, where somebody must know it to give another one.
  Error Explain(Error error, int num_ranks) const;
};
void AddMemoryOption(CLI::App& app, MemoryOfRanks& memory);

// What a process takes at most beside what plans count, wherever it runs: code and libraries, MPI
// where there are several ranks, what requests take before a model is loaded, and growth
// (engine::LeftOfBudget). An estimate, and the same each time, so that the same question has the
// same answer.
uint64_t ProgramBytes(int num_ranks);

// engine::AnswerPlanQuestion with that memory, or else the device's, or else an equal part of this
// machine's; and what the profile has measured of the forms of attention. Errors: this machine does
// not say how much memory it has; memories of another number of ranks than the question's; a budget
// that is no more than what the program takes.
Status AnswerByProfile(const cost::MachineProfile& profile, const MemoryOfRanks& memory,
                       int step_tokens, planner::PlanQuestion& question);

}  // namespace convene::cli
