#include "cli/workload_options.h"

#include <filesystem>
#include <nlohmann/json.hpp>
#include <utility>
#include <vector>

#include "base/json.h"
#include "cli/command.h"
#include "cli/output.h"
#include "cli/value_options.h"
#include "cost/expected_sizes.h"

namespace convene::cli {
namespace {

Result<nlohmann::json> ReadJson(const std::string& path) {
  const Result<std::string> text = ReadText(path);
  if (!text) return text.error();
  Result<nlohmann::json> json = ParseJson(*text);
  if (!json) return json.error().At(path);
  return json;
}

Result<planner::Workload> ReadWorkloadFile(const std::string& path) {
  const Result<nlohmann::json> json = ReadJson(path);
  if (!json) return json.error();
  Result<planner::WorkloadFile> file = planner::WorkloadFromJson(*json);
  if (!file) return file.error().At(path);
  planner::Workload workload = std::move(file->workload);
  const std::filesystem::path folder = std::filesystem::path(path).parent_path();
  if (!file->trace_path.empty()) {
    const std::string trace = folder / file->trace_path;
    const Result<std::string> csv = ReadText(trace);
    if (!csv) return csv.error();
    Result<std::vector<planner::RequestLengths>> requests = planner::RequestsFromTrace(*csv);
    if (!requests) return requests.error().At(trace);
    workload.requests = *std::move(requests);
  }
  if (!file->routing_path.empty()) {
    const std::string routing = folder / file->routing_path;
    const Result<nlohmann::json> counts_json = ReadJson(routing);
    if (!counts_json) return counts_json.error();
    auto counts = cost::RouterCountsFromJson(*counts_json);
    if (!counts) return counts.error().At(routing);
    workload.routing.counts = *std::move(counts);
  }
  return workload;
}

}  // namespace

void AddWorkloadOptions(CLI::App& app, WorkloadOptions& options) {
  CLI::Option* prompts = AddNumber(app, "--prompt-tokens", options.prompt_tokens,
                                   {0, planner::kMostTokens}, "Of each prompt (default: 512)");
  CLI::Option* answers = AddNumber(app, "--gen-tokens", options.gen_tokens,
                                   {0, planner::kMostTokens}, "Of each answer (default: 64)");
  CLI::Option* batch = AddNumber(app, "--batch", options.batch, {1, planner::kMostSequences},
                                 "Sequences that run together (default: 1)");
  CLI::Option* file =
      AddPath(app, "--workload", options.path,
              "All that from a file, and traces, arrival rates, routing (docs/planning.md)")
          ->type_name("FILE");
  AddText(app, "--objective", options.objective,
          "throughput (default), ttft, time_per_token or goodput")
      ->check(ParsedBy(planner::ObjectiveFromName));
  AddNumber(app, "--ttft-limit", options.ttft_limit, {1e-9, 1e6}, "Of goodput, in seconds")
      ->type_name("S");
  AddNumber(app, "--time-per-token-limit", options.time_per_token_limit, {1e-9, 1e6},
            "Of goodput, in seconds")
      ->type_name("S");
  CLI::Option* experts = AddNumber(app, "--num-experts-skew", options.skew_experts, kPositive,
                                   "Routing: the number of experts preferred");
  CLI::Option* skew = AddNumber(app, "--router-skew", options.skew, {0.0, 1.0},
                                "Routing: the share of tokens that go to them");
  skew->needs(experts);
  experts->needs(skew);
  for (CLI::Option* said_there : {prompts, answers, batch, skew}) file->excludes(said_there);
  experts->group(kRareOptions);
  skew->group(kRareOptions);
}

Result<planner::Workload> ReadWorkload(const WorkloadOptions& options) {
  planner::Workload workload;
  if (!options.path.empty()) {
    Result<planner::Workload> read = ReadWorkloadFile(options.path);
    if (!read) return read;
    workload = *std::move(read);
  } else {
    workload.requests = {{options.prompt_tokens.value_or(512), options.gen_tokens.value_or(64)}};
    workload.batch = options.batch.value_or(1);
    if (options.skew) {
      workload.routing.skew = *options.skew;
      workload.routing.num_experts_skew = *options.skew_experts;
    }
  }
  if (options.objective) workload.objective = *planner::ObjectiveFromName(*options.objective);
  if (options.ttft_limit) workload.limits.ttft = *options.ttft_limit;
  if (options.time_per_token_limit) workload.limits.time_per_token = *options.time_per_token_limit;
  return workload;
}

}  // namespace convene::cli
