// The options that say what a model is run for: prompts, answers, how many at once, routing and
// objective, or a file with all that. What a workload means is planner/workload.h.
#pragma once

#include <CLI/CLI.hpp>
#include <optional>
#include <string>

#include "base/result.h"
#include "planner/workload.h"

namespace convene::cli {

struct WorkloadOptions {
  std::optional<int> prompt_tokens = {};
  std::optional<int> gen_tokens = {};
  std::optional<int> batch = {};
  std::string path = {};  // of --workload
  std::optional<std::string> objective = {};
  std::optional<double> ttft_limit = {};
  std::optional<double> time_per_token_limit = {};
  std::optional<int> skew_experts = {};
  std::optional<double> skew = {};
};

// `options` must outlive the parser.
void AddWorkloadOptions(CLI::App& app, WorkloadOptions& options);

// Reads the file, and the trace and the routing that it names, which are looked for beside it.
// Errors: the file and options that say the same; those of reading. Whether the workload makes
// sense for a model is planner::CheckWorkload.
Result<planner::Workload> ReadWorkload(const WorkloadOptions& options);

}  // namespace convene::cli
