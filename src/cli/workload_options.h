// The options that say what a model is run for: prompts, answers, how many at once, routing and
// objective, or a file with all that. What a workload means is planner/workload.h.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "base/result.h"
#include "cli/cli11_fwd.h"
#include "planner/workload.h"

namespace convene::cli {

struct WorkloadOptions {
  bool operator==(const WorkloadOptions&) const = default;

  std::optional<int> prompt_tokens = {};
  std::optional<int> gen_tokens = {};
  std::optional<int> batch = {};
  std::optional<int> requests = {};
  std::string path = {};   // of --workload
  std::string trace = {};  // paths
  std::string routing = {};
  std::optional<double> arrival_rate = {};
  std::optional<std::string> objective = {};
  std::optional<double> ttft_limit = {};
  std::optional<double> time_per_token_limit = {};
  std::optional<int> skew_experts = {};
  std::optional<double> skew = {};
};

// Whether any of them was given.
bool IsGiven(const WorkloadOptions& options);

// `options` must outlive the parser.
void AddWorkloadOptions(CLI::App& app, WorkloadOptions& options);

// Reads the file, and the trace and the routing that it names, which are looked for beside it.
// Errors: the file and options that say the same; those of reading. Whether the workload makes
// sense for a model is planner::CheckWorkload.
Result<planner::Workload> ReadWorkload(const WorkloadOptions& options);

// How many tokens chose each expert, by layer: a file as --record-routing writes it.
Result<std::vector<std::vector<double>>> ReadRouterCounts(const std::string& path);

// Requests of a trace that are longer than so many positions, which people have asked of another
// model, are left out, and this is said. Where all are, they stay, and are an error of
// planner::CheckWorkload.
void LeaveOutTooLong(int max_positions, planner::Workload& workload);

}  // namespace convene::cli
