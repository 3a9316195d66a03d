// The command line that runs a plan as it was priced. It runs nothing.
#pragma once

#include <string>
#include <string_view>

#include "cli/plan_report.h"

namespace convene::cli {

// `text` as a shell reads it as one word: in single quotes where anything in it means more.
std::string ShellWord(std::string_view text);

// Of the chosen plan; empty for devices, on which nothing runs yet, and for what no options say
// where the report has no plan's file.
std::string CommandOf(const PlanReport& report);
// The same of any candidate; without a plan's file by options. No options say: two divisions of the
// experts that both stay in memory, prompts that join an epoch, what is solved for each step,
// chunks of unequal numbers of experts.
std::string CommandOf(const PlanReport& report, const planner::Candidate& candidate,
                      const std::string& plan_path);

// CommandOf for people: where it is empty, what to do instead.
std::string HowToRun(const PlanReport& report);

}  // namespace convene::cli
