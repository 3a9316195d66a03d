#include "planner/workload.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <nlohmann/json.hpp>
#include <numeric>

#include "base/quote.h"
#include "cost/csv.h"

namespace convene::planner {
namespace {

using nlohmann::json;

constexpr int kVersion = 1;
constexpr std::string_view kObjectives[] = {"throughput", "ttft", "time_per_token", "goodput"};
constexpr double kMostRate = 1e6;               // requests per second
constexpr double kMostSecondsOfWorkload = 1e6;  // of a limit
constexpr size_t kMostPathBytes = 4096;

// As it stands there; what may be long is cut.
std::string Written(const json& value) {
  if (value.is_number()) return value.dump();
  return Quote(value.is_string() ? value.get<std::string>() : value.dump());
}

Result<double> NumberOf(const json& value, const char* key, double least, double most) {
  if (!value.is_number() || !(value.get<double>() >= least && value.get<double>() <= most)) {
    return Error{fmt::format("\"{}\" is {}; it must be a number from {} to {}", key, Written(value),
                             least, most)};
  }
  return value.get<double>();
}

Result<int> WholeOf(const json& value, const char* key, int least, int most) {
  const bool is_whole = value.is_number_integer() &&
                        (!value.is_number_unsigned() || value.get<uint64_t>() <= INT64_MAX);
  if (!is_whole || value.get<int64_t>() < least || value.get<int64_t>() > most) {
    return Error{fmt::format("\"{}\" is {}; it must be a whole number from {} to {}", key,
                             Written(value), least, most)};
  }
  return value.get<int>();
}

// A number, or an object with the mean.
Result<int> LengthOf(const json& value, const char* key) {
  if (!value.is_object()) return WholeOf(value, key, 1, kMostTokens);
  if (value.size() != 1 || !value.contains("mean")) {
    return Error{fmt::format(
        "\"{}\" is an object with other members than \"mean\"; write a whole number of tokens, "
        "{{\"mean\": N}}, or \"trace\": \"FILE.csv\" in place of both lengths",
        key)};
  }
  const Result<double> mean = NumberOf(value["mean"], key, 1, kMostTokens);
  if (!mean) return mean.error();
  return static_cast<int>(std::lround(*mean));
}

Result<std::string> PathOf(const json& value, const char* key) {
  if (!value.is_string() || value.get<std::string>().empty() ||
      value.get<std::string>().size() > kMostPathBytes) {
    return Error{fmt::format("\"{}\" is not the path of a file", key)};
  }
  return value.get<std::string>();
}

template <typename T>
Status Assign(Result<T> result, T* value) {
  if (!result) return result.error();
  *value = *std::move(result);
  return {};
}

Error UnknownKey(const std::string& key, std::string_view known) {
  return {fmt::format("{} is not known; there are {}", Quote(key), known)};
}

Status ReadRouting(const json& object, WorkloadFile* file) {
  if (!object.is_object()) return Error{"\"routing\" is not an object"};
  Routing& routing = file->workload.routing;
  for (const auto& [key, value] : object.items()) {
    Status read;
    if (key == "recorded") {
      read = Assign(PathOf(value, "recorded"), &file->routing_path);
    } else if (key == "skew") {
      read = Assign(NumberOf(value, "skew", 0, 1), &routing.skew);
    } else if (key == "experts") {
      read = Assign(WholeOf(value, "experts", 1, kMostSequences), &routing.num_experts_skew);
    } else {
      read = UnknownKey(key, "recorded, or skew and experts");
    }
    if (!read) return read.error().At("\"routing\"");
  }
  const bool has_skew = routing.skew >= 0;
  if (has_skew != (routing.num_experts_skew > 0) || has_skew != file->routing_path.empty()) {
    return Error{
        "\"routing\" must be {\"recorded\": \"FILE.json\"} or {\"skew\": 0.6, \"experts\": 8}"};
  }
  return {};
}

Status ReadLimits(const json& object, ServiceLimits* limits) {
  if (!object.is_object()) return Error{"\"limits\" is not an object"};
  for (const auto& [key, value] : object.items()) {
    Status read;
    if (key == "ttft_s") {
      read = Assign(NumberOf(value, "ttft_s", 1e-9, kMostSecondsOfWorkload), &limits->ttft);
    } else if (key == "time_per_token_s") {
      read = Assign(NumberOf(value, "time_per_token_s", 1e-9, kMostSecondsOfWorkload),
                    &limits->time_per_token);
    } else {
      read = UnknownKey(key, "ttft_s and time_per_token_s");
    }
    if (!read) return read.error().At("\"limits\"");
  }
  return {};
}

Status ReadMember(const std::string& key, const json& value, WorkloadFile* file) {
  Workload& workload = file->workload;
  if (key == "prompt_tokens" || key == "gen_tokens") {
    RequestLengths lengths = workload.requests.front();
    Status read = Assign(LengthOf(value, key.c_str()),
                         key == "gen_tokens" ? &lengths.gen_tokens : &lengths.prompt_tokens);
    workload.requests = {lengths};
    return read;
  }
  if (key == "trace") return Assign(PathOf(value, "trace"), &file->trace_path);
  if (key == "batch") return Assign(WholeOf(value, "batch", 1, kMostSequences), &workload.batch);
  if (key == "num_requests") {
    return Assign(WholeOf(value, "num_requests", 1, static_cast<int>(kMostRequests)),
                  &workload.num_requests);
  }
  if (key == "arrival_rate") {
    return Assign(NumberOf(value, "arrival_rate", 1e-9, kMostRate), &workload.arrival_rate);
  }
  if (key == "routing") return ReadRouting(value, file);
  if (key == "limits") return ReadLimits(value, &workload.limits);
  if (key == "objective") {
    if (!value.is_string()) return Error{"\"objective\" is not a text"};
    return Assign(ObjectiveFromName(value.get<std::string>()), &workload.objective);
  }
  return UnknownKey(
      key,
      "version, prompt_tokens, gen_tokens, trace, batch, num_requests, arrival_rate, routing, "
      "objective and limits");
}

// 0 where it is none.
int TokensIn(const std::string& field) {
  int64_t tokens = 0;
  const auto [end, error] = std::from_chars(field.data(), field.data() + field.size(), tokens);
  if (error != std::errc() || end != field.data() + field.size()) return -1;
  return tokens >= 0 && tokens <= kMostTokens ? static_cast<int>(tokens) : -1;
}

const model::MoeSpec* FirstExperts(const model::ModelSpec& spec) {
  for (const model::LayerSpec& layer : spec.layers) {
    if (layer.moe) return &*layer.moe;
  }
  return nullptr;
}

Status CheckCounts(const Routing& routing, const model::ModelSpec& spec) {
  if (std::ssize(routing.counts) != spec.num_layers()) {
    return Error{
        fmt::format("the recorded routing has {} layers, the model {}: record it with this model "
                    "(--record-routing)",
                    routing.counts.size(), spec.num_layers())};
  }
  for (size_t layer = 0; layer < routing.counts.size(); ++layer) {
    const auto& moe = spec.layers[layer].moe;
    const size_t experts = moe ? static_cast<size_t>(moe->num_experts) : 0;
    if (routing.counts[layer].size() == experts) continue;
    return Error{fmt::format(
        "the recorded routing has {} experts in layer {}, the model {}: record it with this model",
        routing.counts[layer].size(), layer, experts)};
  }
  return {};
}

Status CheckSkew(const Routing& routing, const model::ModelSpec& spec) {
  const model::MoeSpec* moe = FirstExperts(spec);
  if (moe == nullptr) return Error{"the model has no experts whose routing could be skewed"};
  if (routing.num_experts_skew >= moe->top_k && routing.num_experts_skew < moe->num_experts) {
    return {};
  }
  return Error{
      fmt::format("a skew towards {} experts is out of range; it must be {} (experts per token) to "
                  "{} (one less "
                  "than there are)",
                  routing.num_experts_skew, moe->top_k, moe->num_experts - 1)};
}

}  // namespace

std::string_view Name(Objective objective) { return kObjectives[static_cast<size_t>(objective)]; }

Result<Objective> ObjectiveFromName(std::string_view name) {
  for (size_t i = 0; i < std::size(kObjectives); ++i) {
    if (kObjectives[i] == name) return static_cast<Objective>(i);
  }
  return Error{fmt::format("the objective is throughput, ttft, time_per_token or goodput, not {}",
                           Quote(name))};
}

double Workload::mean_prompt_tokens() const {
  const RequestSums all = requests.sums();
  return static_cast<double>(all.prompt_tokens) / static_cast<double>(all.num_requests);
}

double Workload::mean_gen_tokens() const {
  const RequestSums all = requests.sums();
  return static_cast<double>(all.gen_tokens) / static_cast<double>(all.num_requests);
}

Result<WorkloadFile> WorkloadFromJson(const json& object) {
  if (!object.is_object() || !object.contains("version")) {
    return Error{"not a workload: it has no version"};
  }
  if (object["version"] != kVersion) {
    return Error{fmt::format("a workload of version {}; this program reads version {}",
                             object["version"].dump(), kVersion)};
  }
  WorkloadFile file;
  for (const auto& [key, value] : object.items()) {
    if (key == "version") continue;
    if (Status read = ReadMember(key, value, &file); !read) return read.error();
  }
  const bool has_lengths = object.contains("prompt_tokens") && object.contains("gen_tokens");
  const bool has_length = object.contains("prompt_tokens") || object.contains("gen_tokens");
  if (file.trace_path.empty() ? !has_lengths : has_length) {
    return Error{
        "a workload has either \"prompt_tokens\" and \"gen_tokens\", or a \"trace\" with both"};
  }
  const bool has_requests = object.contains("num_requests");
  if (int{object.contains("batch")} + int{object.contains("arrival_rate")} + int{has_requests} >
      1) {
    return Error{
        "a workload has either a \"batch\", or \"num_requests\" or an \"arrival_rate\", which then "
        "decide how many sequences run together"};
  }
  if (has_requests) file.workload.batch = kUsualSequences;
  return file;
}

Result<TraceRequests> RequestsFromTrace(std::string_view csv) {
  const Result<cost::CsvTable> table = cost::CsvTable::Parse(csv);
  if (!table) return table.error();
  constexpr std::pair<const char*, const char*> kNames[] = {
      {"ContextTokens", "GeneratedTokens"},
      {"num_prefill_tokens", "num_decode_tokens"},
      {"prompt_tokens", "gen_tokens"}};
  for (const auto& [prompts, answers] : kNames) {
    const int prompt = table->column(prompts);
    const int answer = table->column(answers);
    if (prompt < 0 || answer < 0) continue;
    TraceRequests read;
    static_assert(cost::kMostCsvRows <= kMostRequests);
    for (size_t row = 0; row < table->num_rows(); ++row) {
      const RequestLengths request{TokensIn(table->at(row, prompt)),
                                   TokensIn(table->at(row, answer))};
      if (request.prompt_tokens < 0 || request.gen_tokens < 0) {
        return Error{fmt::format("line {} of the trace has no numbers of tokens from 0 to {}",
                                 table->line_of(row), kMostTokens)};
      }
      if (request.prompt_tokens > 0 && request.gen_tokens > 0) {
        read.requests.push_back(request);
      } else {
        ++read.num_left_out;
      }
    }
    if (read.requests.empty()) return Error{"the trace has no request with a prompt and an answer"};
    return read;
  }
  return Error{
      "the trace has no columns of lengths; known are ContextTokens and GeneratedTokens, "
      "num_prefill_tokens and num_decode_tokens, prompt_tokens and gen_tokens"};
}

Status CheckWorkload(const Workload& workload, const model::ModelSpec& spec) {
  if (workload.requests.empty()) return Error{"a workload without any request"};
  for (const RequestLengths& request : workload.requests) {
    if (request.prompt_tokens >= 1 && request.gen_tokens >= 1) continue;
    return Error{fmt::format(
        "a workload of {} tokens of prompt and {} of answer does nothing that could be planned; "
        "both must be at least 1",
        request.prompt_tokens, request.gen_tokens)};
  }
  if (workload.longest_request() > spec.max_positions) {
    return Error{fmt::format(
        "a request of {} tokens (prompt and answer) is longer than the {} positions that the model "
        "has; use shorter ones",
        workload.longest_request(), spec.max_positions)};
  }
  const bool has_limits = workload.limits.ttft > 0 || workload.limits.time_per_token > 0;
  if (workload.objective == Objective::kGoodput && !has_limits) {
    return Error{
        "goodput is throughput within limits: give a limit of the time to first token, of the time "
        "per token, or of both"};
  }
  if (workload.objective != Objective::kGoodput && has_limits) {
    return Error{fmt::format(
        "limits are of the objective goodput, and the objective is {}: add --objective goodput (in "
        "a workload's file \"objective\": \"goodput\"), or leave the limits out",
        Name(workload.objective))};
  }
  if (workload.num_requests > 0 && workload.objective != Objective::kThroughput) {
    return Error{fmt::format(
        "how many of {} requests run together is chosen for their throughput, and the objective is "
        "{}: give --batch (\"batch\" in a workload's file) in place of the number of requests",
        workload.num_requests, Name(workload.objective))};
  }
  const bool needs_steps =
      workload.objective == Objective::kTimePerToken || workload.limits.time_per_token > 0;
  if (needs_steps && !(workload.mean_gen_tokens() > 1)) {
    return Error{
        "answers of one token have no time per token, since that token comes with the prompt; "
        "generate at least 2 tokens"};
  }
  return CheckRouting(workload.routing, spec);
}

Status CheckRouting(const Routing& routing, const model::ModelSpec& spec) {
  if (!routing.counts.empty()) return CheckCounts(routing, spec);
  if (routing.skew >= 0) return CheckSkew(routing, spec);
  return {};
}

std::vector<cost::ExpertShares> SharesOf(const Routing& routing, const model::ModelSpec& spec) {
  std::vector<cost::ExpertShares> shares;
  if (!routing.counts.empty()) {
    for (size_t layer = 0; layer < routing.counts.size(); ++layer) {
      const auto& moe = spec.layers[layer].moe;
      shares.push_back(moe ? cost::SharesFromCounts(routing.counts[layer], moe->top_k)
                           : cost::ExpertShares{});
    }
    return shares;
  }
  const model::MoeSpec* moe = FirstExperts(spec);
  if (routing.skew < 0 || moe == nullptr) return shares;
  std::vector<double> counts(static_cast<size_t>(moe->num_experts));
  for (int expert = 0; expert < moe->num_experts; ++expert) {
    const bool is_preferred = expert < routing.num_experts_skew;
    counts[expert] = is_preferred
                         ? routing.skew / routing.num_experts_skew
                         : (1 - routing.skew) / (moe->num_experts - routing.num_experts_skew);
  }
  shares.push_back(cost::SharesFromCounts(counts, moe->top_k));
  return shares;
}

std::vector<RequestLengths> TypicalSequences(const Workload& workload, int count) {
  const int64_t all = workload.requests.count();
  std::vector<RequestLengths> typical;
  typical.reserve(static_cast<size_t>(count));
  for (int i = 0; i < count; ++i) {
    const int64_t first = all * i / count;
    typical.push_back(workload.requests.MeanOf(first, std::max(first + 1, all * (i + 1) / count)));
  }
  return typical;
}

}  // namespace convene::planner
