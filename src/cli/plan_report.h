// A plan and why it was chosen, for people, for programs, and as the file that --plan reads. What
// it shows comes from planner/; the page with pictures is plan_page.h.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "cli/verify_plan.h"
#include "cost/machine_profile.h"
#include "planner/explain_plan.h"
#include "planner/plan_search.h"
#include "planner/sequences_together.h"

namespace convene::cli {

// The command that runs plans, in what the report says of them.
enum class PlanUse { kBatch, kServe };

struct PlanReport {
  const planner::PlanQuestion& question;
  const planner::PlanAnswer& answer;
  const planner::Explanation& explanation;
  std::string model;                  // as it was given
  std::string model_hash;             // plan::ModelHash
  std::string profile;                // where the costs are from
  std::string plan_path;              // of --out; empty: there is none
  const cost::MachineProfile& costs;  // those that the search had
  const nlohmann::json& config;       // of the model
  const std::optional<Verification>& verification;
  PlanUse use = PlanUse::kBatch;
  // Where the workload has a number of requests: how many run together, and why.
  std::optional<planner::BatchOfRequests> batch = {};

  const planner::Candidate& chosen() const { return answer.candidates[answer.chosen]; }
  const planner::Candidate& of(const planner::Alternative& alternative) const {
    return answer.candidates[alternative.candidate];
  }
};

std::string ToText(const PlanReport& report);
// The format of the weights where --allow says nothing of them: the first with which a plan that
// may be chosen fits memory, or else the last that is read from a disk.
std::string UsualFormat(const planner::PlanQuestion& question, const planner::PlanAnswer& answer);
// What a plan changes, of one that is looked at in the report (cli/plan_changes.h).
std::vector<std::string> ChangesIn(const PlanReport& report, const planner::Candidate& candidate);
// "; " between them; "nothing" of such a plan beside a chosen one that changes something, "" beside
// another one.
std::string AlternativeChanges(const PlanReport& report, const planner::Candidate& candidate);
// Which models the figures of changes are of, and where they were measured.
inline constexpr std::string_view kWhereChangesWereMeasured =
    "of which models these figures are, and how they were measured: docs/planning.md, "
    "\"What may be chosen\"";
inline constexpr std::string_view kMemoryNotLookedAt = "not looked at (--without memory)";
// Passes with what each contributed, and every rejected candidate with its reason.
std::string ExplainSearch(const PlanReport& report);

// What plan::PlanFromJson reads, with what was foreseen beside it.
nlohmann::ordered_json PlanFile(const PlanReport& report);
nlohmann::ordered_json ToJson(const PlanReport& report);

// Of any candidate with figures, for commands that choose none: names and values from time to first
// token to what is extrapolated, the same as lines, and for programs.
using ReportLines = std::vector<std::pair<std::string_view, std::string>>;
ReportLines FigureLines(const planner::Candidate& candidate, const planner::Workload& workload);
std::string DescribeFigures(const planner::Candidate& candidate, const planner::Workload& workload);
nlohmann::ordered_json FiguresJson(const planner::Candidate& candidate);

// "prompts of 512 tokens and answers of 64 tokens, batches of 8; best throughput"
std::string WorkloadWords(const planner::Workload& workload);
nlohmann::ordered_json WorkloadJson(const planner::Workload& workload);

// "  name                  value\n"
std::string ReportLine(std::string_view name, std::string_view value);

// Whether how far a figure is off is known: the interval is wider than rounding.
bool IsKnown(const cost::Interval& interval);

// "1.23 s", "45.1 ms", "310 us"
std::string FormatSeconds(double seconds);

}  // namespace convene::cli
