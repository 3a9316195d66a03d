// What a plan is made for: how long prompts and answers are, how many of them run together or
// arrive in a second, how tokens spread over experts, and what is to be good. It knows no machine,
// and which steps follow from it is workload_steps.h.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "cost/expected_sizes.h"
#include "model/model_spec.h"
#include "planner/requests.h"

namespace convene::planner {

inline constexpr int kMostSequences = 1 << 16;  // that run together
inline constexpr int kUsualSequences = 32;      // of `convene batch`

enum class Objective {
  kThroughput,    // generated tokens per second, prompts counted into the time
  kTtft,          // time to first token
  kTimePerToken,  // of generated ones, after the first
  kGoodput,       // throughput within the limits of both times
};
std::string_view Name(Objective objective);  // "throughput", "ttft", "time_per_token", "goodput"
Result<Objective> ObjectiveFromName(std::string_view name);

// Seconds; 0: no limit.
struct ServiceLimits {
  double ttft = 0;
  double time_per_token = 0;

  bool operator==(const ServiceLimits&) const = default;
};

// How tokens spread over the experts. Nothing set: evenly.
struct Routing {
  // By layer and expert, as --record-routing counts it; a layer without experts has none.
  std::vector<std::vector<double>> counts = {};
  // Or a share of the tokens goes to the first few experts, the rest evenly to the others; below 0:
  // not so.
  double skew = -1;
  int num_experts_skew = 0;

  bool operator==(const Routing&) const = default;
};

struct Workload {
  Requests requests = {{512, 64}};  // one: all are alike
  // Sequences that run together; with num_requests, those that usually do.
  int batch = 1;
  // Requests that are all there at once, of which as many run together as are answered soonest
  // (sequences_together.h); 0: `batch`.
  int num_requests = 0;
  double arrival_rate = 0;  // requests per second, which then decide how many run together; 0: none
  Routing routing = {};
  Objective objective = Objective::kThroughput;
  ServiceLimits limits = {};

  bool operator==(const Workload&) const = default;

  double mean_prompt_tokens() const;
  double mean_gen_tokens() const;
  double mean_context() const { return requests.mean_context(); }
  int64_t longest_request() const { return requests.longest(); }
};

// What a file says, and which other files it names: those are the caller's to read.
struct WorkloadFile {
  Workload workload;
  std::string trace_path;    // of a CSV with the lengths of requests; empty: none
  std::string routing_path;  // of counts of tokens by layer and expert; empty: none
};

// {"version": 1, "prompt_tokens": 512, "gen_tokens": 64, "batch": 8}, where
// - "prompt_tokens" and "gen_tokens" may be {"mean": 512}: all requests are taken to be that long;
// - "trace": "FILE.csv" stands in place of both;
// - "num_requests": 1000 (that are all there at once) stands in place of "batch";
// - "arrival_rate": 2.5 (requests per second) does, too;
// - "routing" is {"recorded": "FILE.json"} or {"skew": 0.6, "experts": 8};
// - "objective" is throughput (default), ttft, time_per_token or goodput, and "limits"
//   {"ttft_s": 1, "time_per_token_s": 0.05} are what goodput keeps.
// Errors: another version, keys that are not known, numbers out of range, lengths of no tokens.
Result<WorkloadFile> WorkloadFromJson(const nlohmann::json& object);

// Columns ContextTokens and GeneratedTokens (Azure's traces of inference), num_prefill_tokens and
// num_decode_tokens (arXiv summaries), or prompt_tokens and gen_tokens. Requests of no prompt or no
// answer are left out. Errors: other columns, a field that is no number, no request at all, more
// than kMostRequests.
struct TraceRequests {
  std::vector<RequestLengths> requests;
  size_t num_left_out = 0;
};
Result<TraceRequests> RequestsFromTrace(std::string_view csv);

// Error: what makes no sense by itself or for this model.
Status CheckWorkload(const Workload& workload, const model::ModelSpec& spec);

// Error: recorded or stated routing that is not of this model.
Status CheckRouting(const Routing& routing, const model::ModelSpec& spec);

// How likely a token visits each expert, by layer of the decoder, or one entry for all layers; none
// where all experts are alike. Precondition: CheckRouting.
std::vector<cost::ExpertShares> SharesOf(const Routing& routing, const model::ModelSpec& spec);

// The prompts and answers of `count` sequences that run together: of requests in order of their
// prompts, cut into as many equal parts, the mean of each part. So all of them together are as long
// as `count` requests are on average.
std::vector<RequestLengths> TypicalSequences(const Workload& workload, int count);

}  // namespace convene::planner
