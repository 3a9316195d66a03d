#include "cli/workload_options.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <utility>
#include <vector>

#include "base/json.h"
#include "base/message.h"
#include "base/quote.h"
#include "cli/command.h"
#include "cli/output.h"
#include "cli/parsed_by.h"
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

Status ReadTrace(const std::string& path, planner::Workload& workload) {
  const Result<std::string> csv = ReadText(path);
  if (!csv) return csv.error();
  Result<planner::TraceRequests> trace = planner::RequestsFromTrace(*csv);
  if (!trace) return trace.error().At(path);
  if (trace->num_left_out > 0) {
    PrintNote("{} of {} requests of {} have no prompt or no answer, and are left out\n",
              trace->num_left_out, trace->num_left_out + trace->requests.size(), Quote(path));
  }
  workload.requests = std::move(trace->requests);
  return {};
}

Status ReadRouting(const std::string& path, planner::Workload& workload) {
  auto counts = ReadRouterCounts(path);
  if (!counts) return counts.error();
  workload.routing.counts = *std::move(counts);
  return {};
}

Result<planner::Workload> ReadWorkloadFile(const std::string& path) {
  const Result<nlohmann::json> json = ReadJson(path);
  if (!json) return json.error();
  Result<planner::WorkloadFile> file = planner::WorkloadFromJson(*json);
  if (!file) return file.error().At(path);
  planner::Workload workload = std::move(file->workload);
  const std::filesystem::path folder = std::filesystem::path(path).parent_path();
  if (!file->trace_path.empty()) {
    if (Status read = ReadTrace(folder / file->trace_path, workload); !read) return read.error();
  }
  if (!file->routing_path.empty()) {
    if (Status read = ReadRouting(folder / file->routing_path, workload); !read) {
      return read.error();
    }
  }
  return workload;
}

}  // namespace

Result<std::vector<std::vector<double>>> ReadRouterCounts(const std::string& path) {
  const Result<nlohmann::json> json = ReadJson(path);
  if (!json) return json.error();
  auto counts = cost::RouterCountsFromJson(*json);
  if (!counts) return counts.error().At(path);
  return counts;
}

bool IsGiven(const WorkloadOptions& options) { return options != WorkloadOptions(); }

void AddWorkloadOptions(CLI::App& app, WorkloadOptions& options) {
  CLI::Option* prompts = AddNumber(app, "--prompt-tokens", options.prompt_tokens,
                                   {0, planner::kMostTokens}, "Of each prompt (default: 512)");
  CLI::Option* answers = AddNumber(app, "--gen-tokens", options.gen_tokens,
                                   {0, planner::kMostTokens}, "Of each answer (default: 64)");
  CLI::Option* batch = AddNumber(app, "--batch", options.batch, {1, planner::kMostSequences},
                                 "Sequences that run together (default: 1)");
  CLI::Option* requests =
      AddNumber(app, "--requests", options.requests, {1, static_cast<int>(planner::kMostRequests)},
                "So many requests, of which the best number run together");
  CLI::Option* file = AddPath(app, "--workload", options.path,
                              "All that and what follows from a file (docs/planning.md)")
                          ->type_name("FILE");
  CLI::Option* trace =
      AddPath(app, "--trace", options.trace, "Lengths of requests: a CSV file with a line for each")
          ->type_name("FILE.csv");
  CLI::Option* rate = AddNumber(app, "--arrival-rate", options.arrival_rate, {1e-9, 1e9},
                                "Requests that come in a second, instead of --batch")
                          ->type_name("R");
  CLI::Option* routing =
      AddPath(app, "--routing", options.routing,
              "How often each expert of each layer was chosen, as recorded (docs/planning.md)")
          ->type_name("FILE.json");
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
  for (CLI::Option* said_there : {prompts, answers, batch, requests, skew, trace, rate, routing}) {
    file->excludes(said_there);
  }
  for (CLI::Option* lengths : {prompts, answers}) trace->excludes(lengths);
  rate->excludes(batch);
  rate->excludes(requests);
  requests->excludes(batch);
  routing->excludes(skew);
  routing->group(kRareOptions);
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
    workload.batch = options.batch.value_or(options.requests ? planner::kUsualSequences : 1);
    workload.num_requests = options.requests.value_or(0);
    workload.arrival_rate = options.arrival_rate.value_or(0);
    if (!options.trace.empty()) {
      if (Status read = ReadTrace(options.trace, workload); !read) return read.error();
    }
    if (!options.routing.empty()) {
      if (Status read = ReadRouting(options.routing, workload); !read) return read.error();
    }
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

void LeaveOutTooLong(int max_positions, planner::Workload& workload) {
  const auto is_too_long = [&](const planner::RequestLengths& request) {
    return int64_t{1} * request.prompt_tokens + request.gen_tokens > max_positions;
  };
  if (workload.longest_request() <= max_positions) return;
  planner::Requests fitting = workload.requests.Without(is_too_long);
  const int64_t all = workload.requests.count();
  if (fitting.empty()) return;
  PrintNote("{} of {} requests have more than the {} positions of the model, and are left out\n",
            all - fitting.count(), all, max_positions);
  workload.requests = std::move(fitting);
}

}  // namespace convene::cli
