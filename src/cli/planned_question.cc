#include "cli/planned_question.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <set>

#include "base/digest.h"
#include "cost/operator_model.h"
#include "model/family.h"
#include "planner/step_pricer.h"

namespace convene::cli {
namespace {

using Json = nlohmann::json;
using nlohmann::ordered_json;

constexpr size_t kMostRequests = 64;  // that are written one by one
// Of more requests than that: equal parts that are written whatever runs together, and all parts,
// as there are for goodput in batches of planner::kMostSequences, of half as many and so on.
constexpr int kUsualParts = 64;
constexpr size_t kMostParts = 1 << 18;
constexpr int kMostRanks = 1024;
constexpr int kMostStepTokens = 1 << 24;
constexpr double kMostDiskGbps = 1e6;
constexpr double kMostDiskCoreSeconds = 1e6;
constexpr double kMostReadGbps = 1e9;
constexpr size_t kMostPasses = 64;  // of a search, and of those that are off

// Of many requests: by parts that say of any number of sequences that the question may be about
// what the requests themselves do.
ordered_json TraceJson(const planner::Workload& workload) {
  std::vector<int> counts = {kUsualParts, workload.batch};
  if (workload.objective == planner::Objective::kGoodput) {
    for (int fewer = workload.batch / 2; fewer >= 1; fewer /= 2) counts.push_back(fewer);
  }
  ordered_json parts = ordered_json::array();
  for (const planner::RequestSums& part : workload.requests.InParts(counts)) {
    parts.push_back({part.num_requests, part.prompt_tokens, part.gen_tokens});
  }
  return {{"mean_context", workload.mean_context()}, {"parts", std::move(parts)}};
}

ordered_json AskedWorkloadJson(const planner::Workload& workload) {
  ordered_json object = {{"batch", workload.batch},
                         {"arrival_rate", workload.arrival_rate},
                         {"objective", planner::Name(workload.objective)},
                         {"ttft_limit_s", workload.limits.ttft},
                         {"time_per_token_limit_s", workload.limits.time_per_token}};
  if (workload.requests.count() > static_cast<int64_t>(kMostRequests)) {
    object["trace"] = TraceJson(workload);
  } else {
    object["requests"] = ordered_json::array();
    for (const planner::RequestLengths& each : workload.requests) {
      object["requests"].push_back({each.prompt_tokens, each.gen_tokens});
    }
  }
  if (workload.routing.skew >= 0) {
    object["skew"] = workload.routing.skew;
    object["skew_experts"] = workload.routing.num_experts_skew;
  }
  if (!workload.routing.counts.empty()) object["router_counts"] = workload.routing.counts;
  return object;
}

ordered_json ConstraintsJson(const planner::Constraints& constraints) {
  ordered_json object = ordered_json::object();
  if (constraints.num_ranks) object["ranks"] = *constraints.num_ranks;
  if (constraints.num_threads) object["threads"] = *constraints.num_threads;
  if (constraints.num_cores) object["cores"] = *constraints.num_cores;
  if (constraints.whole_matrices) object["whole_matrices"] = true;
  if (constraints.keeps_step_tokens) object["keeps_step_tokens"] = true;
  if (constraints.layout) object["layout"] = plan::ToText(*constraints.layout);
  if (constraints.decode_experts) object["decode_experts"] = *constraints.decode_experts;
  if (constraints.micro_batches) object["micro_batches"] = *constraints.micro_batches;
  if (constraints.disaggregates) object["disaggregates"] = true;
  if (constraints.strategy) object["strategy"] = plan::Name(*constraints.strategy);
  if (constraints.order) object["order"] = plan::Name(*constraints.order);
  if (constraints.wire) object["wire"] = plan::Name(*constraints.wire);
  if (constraints.pipeline) {
    object["pipeline"] = plan::ToJson(plan::Plan{.pipeline = *constraints.pipeline})["pipeline"];
  }
  return object;
}

// The first thing that is wrong is kept, and reading goes on harmlessly.
class Reader {
 public:
  const std::string& error() const { return error_; }
  void Fail(std::string message) {
    if (error_.empty()) error_ = std::move(message);
  }

  const Json& Member(const Json& object, const char* name) {
    static const Json null;
    const auto found = object.is_object() ? object.find(name) : object.end();
    return object.is_object() && found != object.end() ? *found : null;
  }
  double Number(const Json& object, const char* name, double least, double most) {
    const Json& member = Member(object, name);
    const double value = member.is_number() ? member.get<double>() : NAN;
    if (value >= least && value <= most) return value;
    Fail(fmt::format("\"{}\" is no number from {} to {}", name, least, most));
    return least;
  }
  int Integer(const Json& object, const char* name, int least, int most) {
    return static_cast<int>(Number(object, name, least, most));
  }
  std::optional<int> OptionalInteger(const Json& object, const char* name, int most) {
    if (Member(object, name).is_null()) return std::nullopt;
    return Integer(object, name, 1, most);
  }
  const Json& List(const Json& object, const char* name, size_t most) {
    static const Json empty = Json::array();
    const Json& member = Member(object, name);
    if (member.is_array() && member.size() <= most) return member;
    Fail(fmt::format("\"{}\" is no list of at most {}", name, most));
    return empty;
  }
  std::string Text(const Json& object, const char* name) {
    const Json& member = Member(object, name);
    if (member.is_string()) return member.get<std::string>();
    Fail(fmt::format("\"{}\" is no text", name));
    return "";
  }
  bool Flag(const Json& object, const char* name) { return Member(object, name) == Json(true); }
  template <typename Value>
  std::optional<Value> Taken(const Result<Value>& value) {
    if (value) return *value;
    Fail(value.error().message);
    return std::nullopt;
  }

 private:
  std::string error_;
};

// 0: it is no whole number from the least, which is at least 1, to the most.
int64_t WholeNumber(const Json& value, int64_t least, int64_t most) {
  const double number = value.is_number_integer() ? value.get<double>() : 0;
  const bool is_within =
      number >= static_cast<double>(least) && number <= static_cast<double>(most);
  return is_within ? static_cast<int64_t>(number) : 0;
}

bool IsListOf(const Json& value, size_t size) { return value.is_array() && value.size() == size; }

std::vector<planner::RequestLengths> ReadRequests(const Json& object, Reader& reader) {
  std::vector<planner::RequestLengths> requests;
  for (const Json& each : reader.List(object, "requests", kMostRequests)) {
    const bool is_pair = IsListOf(each, 2);
    const int64_t prompt = is_pair ? WholeNumber(each[0], 1, planner::kMostTokens) : 0;
    const int64_t answer = is_pair ? WholeNumber(each[1], 1, planner::kMostTokens) : 0;
    if (prompt == 0 || answer == 0) {
      reader.Fail(fmt::format("\"requests\" has something that is no pair of lengths from 1 to {}",
                              planner::kMostTokens));
      continue;
    }
    requests.push_back({static_cast<int>(prompt), static_cast<int>(answer)});
  }
  if (requests.empty()) reader.Fail("\"requests\" is empty");
  return requests;
}

planner::Requests ReadTraceParts(const Json& object, Reader& reader) {
  const double mean_context = reader.Number(object, "mean_context", 1, 2.0 * planner::kMostTokens);
  std::vector<planner::RequestSums> parts;
  int64_t all = 0;
  for (const Json& each : reader.List(object, "parts", kMostParts)) {
    const int64_t count = IsListOf(each, 3) ? WholeNumber(each[0], 1, planner::kMostRequests) : 0;
    const int64_t most = count * planner::kMostTokens;
    const int64_t prompts = count > 0 ? WholeNumber(each[1], count, most) : 0;
    const int64_t answers = count > 0 ? WholeNumber(each[2], count, most) : 0;
    if (prompts == 0 || answers == 0) {
      reader.Fail(
          fmt::format("\"parts\" has something that is no number of requests with all "
                      "their tokens, from 1 to {} of a prompt and of an answer",
                      planner::kMostTokens));
      continue;
    }
    all += count;
    parts.push_back({.num_requests = count, .prompt_tokens = prompts, .gen_tokens = answers});
  }
  if (parts.empty() || all > static_cast<int64_t>(planner::kMostRequests)) {
    reader.Fail(
        fmt::format("\"parts\" has {} requests; it must be 1 to {}", all, planner::kMostRequests));
  }
  return planner::Requests(std::move(parts), mean_context);
}

planner::Workload ReadWorkload(const Json& object, Reader& reader) {
  planner::Workload workload;
  workload.batch = reader.Integer(object, "batch", 1, planner::kMostSequences);
  workload.arrival_rate = reader.Number(object, "arrival_rate", 0, 1e9);
  workload.limits.ttft = reader.Number(object, "ttft_limit_s", 0, 1e9);
  workload.limits.time_per_token = reader.Number(object, "time_per_token_limit_s", 0, 1e9);
  if (const auto objective =
          reader.Taken(planner::ObjectiveFromName(reader.Text(object, "objective")))) {
    workload.objective = *objective;
  }
  if (reader.Member(object, "trace").is_null()) {
    workload.requests = ReadRequests(object, reader);
  } else {
    workload.requests = ReadTraceParts(reader.Member(object, "trace"), reader);
  }
  if (object.is_object() && object.contains("skew")) {
    workload.routing.skew = reader.Number(object, "skew", 0, 1);
    workload.routing.num_experts_skew = reader.Integer(object, "skew_experts", 1, 1 << 20);
  }
  if (!object.is_object() || !object.contains("router_counts")) return workload;
  for (const Json& layer : reader.List(object, "router_counts", 1 << 16)) {
    std::vector<double>& counts = workload.routing.counts.emplace_back();
    for (const Json& count : layer) counts.push_back(count.is_number() ? count.get<double>() : -1);
    if (std::ranges::any_of(counts, [](double count) { return !(count >= 0 && count < 1e18); })) {
      reader.Fail("\"router_counts\" has something that is no number of tokens");
    }
  }
  return workload;
}

planner::Constraints ReadConstraints(const Json& object, Reader& reader) {
  planner::Constraints constraints;
  constraints.num_ranks = reader.OptionalInteger(object, "ranks", kMostRanks);
  constraints.num_threads = reader.OptionalInteger(object, "threads", 1 << 16);
  constraints.num_cores = reader.OptionalInteger(object, "cores", 1 << 20);
  constraints.whole_matrices = reader.Flag(object, "whole_matrices");
  constraints.keeps_step_tokens = reader.Flag(object, "keeps_step_tokens");
  constraints.micro_batches =
      reader.OptionalInteger(object, "micro_batches", strategy::kMostMicroBatches);
  if (!reader.Member(object, "layout").is_null()) {
    constraints.layout = reader.Taken(plan::ParseLayout(reader.Text(object, "layout")));
  }
  if (!reader.Member(object, "decode_experts").is_null()) {
    constraints.decode_experts = reader.Text(object, "decode_experts");
    if (Status known = plan::CheckExperts(*constraints.decode_experts); !known) {
      reader.Fail(known.error().message);
    }
  }
  constraints.disaggregates = reader.Flag(object, "disaggregates");
  if (!reader.Member(object, "strategy").is_null()) {
    constraints.strategy =
        reader.Taken(plan::DisaggregatedStrategyFromName(reader.Text(object, "strategy")));
  }
  if (!reader.Member(object, "order").is_null()) {
    constraints.order = reader.Taken(plan::OrderFromName(reader.Text(object, "order")));
  }
  if (!reader.Member(object, "wire").is_null()) {
    constraints.wire = reader.Taken(plan::WireFromName(reader.Text(object, "wire")));
  }
  if (!reader.Member(object, "pipeline").is_null()) {
    const auto read = reader.Taken(
        plan::PlanFromJson({{"version", 1}, {"pipeline", reader.Member(object, "pipeline")}}));
    if (read) constraints.pipeline = read->pipeline;
  }
  return constraints;
}

}  // namespace

ordered_json QuestionJson(const planner::PlanQuestion& question, const Json& config,
                          const cost::MachineProfile& profile, const std::string& profile_name) {
  ordered_json memory = ordered_json::array();
  for (int ranks = 1; ranks <= question.num_ranks; ++ranks) {
    memory.push_back(question.memory_per_rank(ranks));
  }
  ordered_json costs = ordered_json::array();
  for (const cost::StepCosts& each : profile.steps) {
    const bool is_used =
        each.num_ranks <= question.num_ranks &&
        std::ranges::find(question.formats, each.weights) != question.formats.end();
    if (is_used) costs.push_back(cost::ToJson(each));
  }
  const std::string text = costs.dump();
  const auto found = profile.operators.find(planner::kSampleGreedily);
  const ordered_json sampling =
      found == profile.operators.end() ? ordered_json() : cost::ToJson(found->second);
  return {{"workload", AskedWorkloadJson(question.workload)},
          {"ranks", question.num_ranks},
          {"step_tokens", question.step_tokens},
          {"expand_from_tokens", question.expand_from_tokens},
          {"one_host", question.one_host},
          {"memory_per_rank", memory},
          {"rank_memory", question.rank_memory},
          {"formats", question.formats},
          {"kv_cache", question.int8_kv ? "int8" : "bf16"},
          {"allowed",
           {{"layout", question.allowed.layout},
            {"wire", question.allowed.wire},
            {"weights", question.allowed.weights},
            {"transition", question.allowed.transition}}},
          {"constraints", ConstraintsJson(question.constraints)},
          {"without", question.passes_off},
          {"disk_gbps", profile.machine.disk_gbps},
          {"disk_core_seconds_per_gb", profile.machine.disk_core_seconds_per_gb},
          {"read_gbps", profile.machine.read_gbps},
          {"sampling", sampling},
          {"profile", profile_name},
          {"costs_hash", fmt::format("{:016x}", DigestOf(std::as_bytes(std::span(text))))},
          {"config", config},
          {"costs", costs}};
}

plan::Plan DecisionsOf(plan::Plan plan, int usual_step_tokens) {
  plan.weights.clear();
  plan.kv_cache.clear();
  plan.num_threads = 0;
  plan.made_for.reset();
  // PlanFile says it of batches whose steps would otherwise have fewer tokens than is usual.
  const int of_group = plan.sequences_of_group(plan.sequences);
  if (plan.step_tokens == std::max(usual_step_tokens, of_group)) plan.step_tokens = 0;
  if (!plan.spilled_kv) plan.sequences = 0;
  return plan;
}

Result<PlannedQuestion> PlannedQuestionFromJson(const Json& object) {
  Reader reader;
  PlannedQuestion question;
  Result<model::ModelSpec> spec = model::ModelSpecFromConfig(reader.Member(object, "config"));
  if (!spec) return spec.error().At("config");
  question.spec = *std::move(spec);
  question.workload = ReadWorkload(reader.Member(object, "workload"), reader);
  question.num_ranks = reader.Integer(object, "ranks", 1, kMostRanks);
  question.step_tokens = reader.Integer(object, "step_tokens", 1, kMostStepTokens);
  question.expand_from_tokens = reader.Integer(object, "expand_from_tokens", 0, 1 << 30);
  question.one_host = reader.Flag(object, "one_host");
  for (const Json& each : reader.List(object, "memory_per_rank", kMostRanks)) {
    question.memory_per_rank.push_back(each.is_number_unsigned() ? each.get<uint64_t>() : 0);
  }
  if (std::ssize(question.memory_per_rank) != question.num_ranks) {
    reader.Fail("\"memory_per_rank\" is not as long as there are ranks");
  }
  if (object.contains("rank_memory")) {
    for (const Json& each : reader.List(object, "rank_memory", kMostRanks)) {
      question.rank_memory.push_back(each.is_number_unsigned() ? each.get<uint64_t>() : 0);
    }
    const std::vector<uint64_t>& memory = question.rank_memory;
    const bool is_whole = memory.empty() || std::ssize(memory) == question.num_ranks;
    if (!is_whole || std::ranges::count(memory, uint64_t{0}) > 0) {
      reader.Fail("\"rank_memory\" is not a number of bytes for each rank");
    }
  }
  for (const Json& each : reader.List(object, "formats", 16)) {
    const std::string name = each.is_string() ? each.get<std::string>() : "";
    if (name != "bf16" && name != "int8" && name != "int4" && name != "f32") {
      reader.Fail("\"formats\" has something that is no format");
    }
    question.formats.push_back(name);
  }
  // Files of before do not tell, and are of bf16.
  if (const Json& cache = reader.Member(object, "kv_cache"); !cache.is_null()) {
    question.int8_kv = cache == "int8";
    if (!question.int8_kv && cache != "bf16") reader.Fail("\"kv_cache\" is neither bf16 nor int8");
  }
  const Json& allowed = reader.Member(object, "allowed");
  question.allowed = {.layout = reader.Flag(allowed, "layout"),
                      .wire = reader.Flag(allowed, "wire"),
                      .weights = reader.Flag(allowed, "weights"),
                      .transition = reader.Flag(allowed, "transition")};
  question.constraints = ReadConstraints(reader.Member(object, "constraints"), reader);
  // Files of before have neither.
  if (!reader.Member(object, "without").is_null()) {
    for (const Json& each : reader.List(object, "without", kMostPasses)) {
      question.passes_off.push_back(each.is_string() ? each.get<std::string>() : "");
    }
  }
  if (!reader.Member(object, "disk_gbps").is_null()) {
    question.profile.machine.disk_gbps = reader.Number(object, "disk_gbps", 0, kMostDiskGbps);
  }
  if (!reader.Member(object, "disk_core_seconds_per_gb").is_null()) {
    question.profile.machine.disk_core_seconds_per_gb =
        reader.Number(object, "disk_core_seconds_per_gb", 0, kMostDiskCoreSeconds);
  }
  if (!reader.Member(object, "read_gbps").is_null()) {
    question.profile.machine.read_gbps = reader.Number(object, "read_gbps", 0, kMostReadGbps);
  }
  if (const Json& sampling = reader.Member(object, "sampling"); !sampling.is_null()) {
    if (auto model = reader.Taken(cost::OperatorModelFromJson(sampling))) {
      question.profile.operators.emplace(planner::kSampleGreedily, *std::move(model));
    }
  }
  question.profile_name = reader.Text(object, "profile");
  for (const Json& each : reader.List(object, "costs", 256)) {
    if (auto costs = reader.Taken(cost::StepCostsFromJson(each))) {
      question.profile.steps.push_back(*std::move(costs));
    }
  }
  if (!reader.error().empty()) return Error{reader.error()};
  return question;
}

}  // namespace convene::cli
