// The options of commands that run on several ranks: how they share the work. What they mean is
// plan/plan.h.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

#include "base/result.h"
#include "cli/cli11_fwd.h"
#include "plan/plan.h"
#include "planner/plan_question.h"
#include "runtime/router_override.h"
#include "runtime/transformer.h"

namespace convene::cli {

// Of attention and experts on different ranks.
struct DisaggregationOptions {
  bool disaggregate = false;
  std::optional<std::string> strategy = {};
  std::optional<std::string> order = {};
};

struct PlanOptions : DisaggregationOptions {
  std::string path;  // of a plan; the other options change it
  std::optional<std::string> layout = {};
  std::optional<std::string> decode_experts = {};
  std::optional<int> epoch_steps = {};
  std::optional<std::string> transition = {};
  std::optional<std::string> keep = {};     // one or both divisions in memory
  std::optional<std::string> prompts = {};  // wait or join
  std::optional<std::string> pipeline = {};
  std::optional<int> micro_batches = {};
  std::optional<std::string> wire = {};
  std::optional<std::string> gemm = {};
  std::optional<int> comm_budget = {};
  bool no_overlap = false;
  bool no_plan = false;
  std::vector<std::string> allowed = {};  // words of --allow
  // Made up, for experiments: a skew, or a file of counts.
  planner::Routing routing = {};
  std::string router_counts_path = {};
};

// --layout, and as rare options --disaggregate, --strategy, --order, --decode-experts,
// --epoch-steps, --transition, --keep, --prompts, --plan, --no-plan, --allow, --pipeline,
// --micro-batches,
// --no-overlap, --wire,
// --gemm, --comm-budget, --router-skew,
// --num-experts-skew and --router-counts.
void AddPlanOptions(CLI::App& app, PlanOptions& options);

// --layout alone, and as rare options --disaggregate, --strategy and --order. Whether they fit each
// other is for who adds them to check, once all are known.
CLI::Option* AddLayoutOption(CLI::App& app, std::optional<std::string>& layout,
                             const std::string& help);
void AddDisaggregationOptions(CLI::App& app, DisaggregationOptions& options);
// Of --disaggregate, if there is one, whose place on the command line says nothing.
Result<strategy::Layout> LayoutOf(const std::string& text, bool disaggregates);

// --allow WORDS, and what they mean. Error: a word that is not known.
CLI::Option* AddAllowOption(CLI::App& app, std::vector<std::string>& words);
Result<planner::Allowed> ParseAllowed(const std::vector<std::string>& words);

// "experts moved 2 times in 0.120 s, 33.5 MiB sent by rank 0\n"; empty if they never did.
std::string DescribeChanges(const runtime::PhaseChanges& changes);
nlohmann::ordered_json ToJson(const runtime::PhaseChanges& changes);

// What a run does for tokens to be routed so. Precondition: planner::CheckRouting.
runtime::RouterOverride RouterOverrideOf(const planner::Routing& routing,
                                         const model::ModelSpec& spec);

// Names of the options that override parts of the plan's file; none where no file was given.
std::vector<std::string> OptionsBesidePlan(const PlanOptions& options);

// For so many ranks, which a plan's file may use fewer of, and the model in a directory. Errors:
// words that are not known, a layout for another number of ranks, a plan that was made for another
// model or number of ranks.
Result<plan::Plan> ResolvePlan(const PlanOptions& options, const std::string& model_directory,
                               int num_ranks);

}  // namespace convene::cli
