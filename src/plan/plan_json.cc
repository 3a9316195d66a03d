#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <string>

#include "base/json.h"
#include "base/quote.h"
#include "base/read_file.h"
#include "base/units.h"
#include "plan/disk_fields.h"
#include "plan/json_range.h"
#include "plan/pipeline_fields.h"
#include "plan/plan.h"

namespace convene::plan {
namespace {

using nlohmann::json;

constexpr int kVersion = 1;
constexpr int kMostRanksMadeFor = 1 << 16;
constexpr int kMostThreads = 1 << 16;
constexpr uint64_t kMaxFileBytes = uint64_t{1} << 20;

template <typename T, typename Value>
Status Assign(const Result<T>& parsed, Value* value) {
  if (!parsed) return parsed.error();
  *value = *parsed;
  return {};
}

// Once the layout is known, whose attention it has.
Status ReadDecode(const json& object, Plan* plan) {
  if (!object.is_object() || !object.contains("experts") || !object["experts"].is_string()) {
    return Error{
        "decode is not an object with experts (a text as in layout): attention is the same in both "
        "phases"};
  }
  for (const auto& [key, value] : object.items()) {
    if (key == "experts") continue;
    if (key == "keep" && (value == "one" || value == "both")) {
      plan->phase_change.keeps_both = value == "both";
    } else if (key == "prompts" && (value == "wait" || value == "join")) {
      plan->phase_change.prompts_join = value == "join";
    } else if (key == "transition" && value.is_string()) {
      const auto transition = TransitionFromName(value.get<std::string>());
      if (Status set = Assign(transition, &plan->phase_change.transition); !set) {
        return set.error().At("decode.transition");
      }
    } else if (key == "epoch_steps" && value.is_number_integer() &&
               IsBetween(value, 0, kMostEpochSteps)) {
      plan->phase_change.epoch_steps = value.get<int>();
    } else {
      return Error{fmt::format(
          "decode.{} is not known or out of range; there are experts (a text as in layout: "
          "attention is the same in both phases), keep (\"one\" or \"both\"), transition "
          "(\"reshard\" "
          "or \"int4\"), epoch_steps (0 to {}) and prompts (\"wait\" or \"join\")",
          Quote(key), kMostEpochSteps)};
    }
  }
  if (Status fits = CheckTransition(*plan); !fits) return fits;
  const auto experts = object["experts"].get<std::string>();
  if (Status known = CheckExperts(experts); !known) return known.error().At("decode.experts");
  return ParseDecodeExperts(experts, plan);
}

// Once the pipeline is known. Without one, layout and pipeline say all.
Status ReadStrategy(const json& value, Plan* plan) {
  if (!value.is_string()) return Error{"strategy is not a text"};
  const auto name = value.get<std::string>();
  if (name == "offload_pipeline") {
    return Error{
        fmt::format("the strategy {} can be simulated but not be executed yet: leave "
                    "\"strategy\" out, and layout and pipeline say how ranks share the work",
                    name)};
  }
  const Result<DisaggregatedStrategy> chosen = DisaggregatedStrategyFromName(name);
  if (!chosen) return chosen.error();
  if (!plan->layout.disaggregates) {
    return Error{
        fmt::format("the strategy {} is of layouts whose attention and experts are on "
                    "different ranks, such as attention=dp1,experts=ep2,disaggregate: "
                    "leave \"strategy\" out, or give such a layout",
                    name)};
  }
  return SetStrategy(*chosen, plan);
}

Status ReadMadeFor(const json& object, Plan* plan) {
  constexpr size_t kHashDigits = 16;
  const auto is_text = [&](const char* key) {
    return object.contains(key) && object[key].is_string();
  };
  if (!object.is_object() || !is_text("model") ||
      object["model"].get<std::string>().size() != kHashDigits || !object.contains("ranks") ||
      !object["ranks"].is_number_integer() || !IsBetween(object["ranks"], 1, kMostRanksMadeFor)) {
    return Error{
        fmt::format("made_for is not an object with model (a hash of {} digits) and ranks (a whole "
                    "number from 1 to {})",
                    kHashDigits, kMostRanksMadeFor)};
  }
  plan->made_for =
      MadeFor{.model = object["model"].get<std::string>(), .num_ranks = object["ranks"].get<int>()};
  return {};
}

Status ReadWeights(const std::string& name, Plan* plan) {
  for (const std::string_view known : {"bf16", "int8", "int4", "f32"}) {
    if (name == known) plan->weights = name;
  }
  if (plan->weights == name && !name.empty()) return {};
  return Error{fmt::format("weights are bf16, int8, int4 or f32, not {}", Quote(name))};
}

Status ReadKvCache(const std::string& name, Plan* plan) {
  if (name != "bf16" && name != "int8") {
    return Error{fmt::format("kv_cache is bf16 or int8, not {}", Quote(name))};
  }
  plan->kv_cache = name;
  return {};
}

Status ReadMember(const std::string& key, const json& value, Plan* plan) {
  if (key == "pipeline") return ReadPipeline(value, plan);
  if (key == "lines") return Assign(LaneLinesFromJson(value), &plan->lines);
  if ((key == "predicted" && value.is_object()) || (key == "alternatives" && value.is_array())) {
    return {};
  }
  if (key == "threads" && value.is_number_integer()) {
    if (!IsBetween(value, 1, kMostThreads)) {
      return Error{fmt::format("threads of {} are out of range; they must be 1 to {}", value.dump(),
                               kMostThreads)};
    }
    plan->num_threads = value.get<int>();
    return {};
  }
  if ((key == "step_tokens" || key == "sequences") && value.is_number_integer()) {
    const bool are_tokens = key == "step_tokens";
    const int most = are_tokens ? kMostStepTokens : kMostSequences;
    if (!IsBetween(value, 1, most)) {
      return Error{
          fmt::format("{} of {} are out of range; they must be 1 to {}", key, value.dump(), most)};
    }
    (are_tokens ? plan->step_tokens : plan->sequences) = value.get<int>();
    return {};
  }
  if ((key == "comm_budget" || key == "host_threads") && value.is_number_integer()) {
    if (!IsBetween(value, 0, kMostCommBudget)) {
      return Error{fmt::format("{} of {} threads is out of range; it must be 0 to {}", key,
                               value.dump(), kMostCommBudget)};
    }
    (key == "comm_budget" ? plan->comm_budget : plan->host_threads) = value.get<int>();
    return {};
  }
  if (key == "experts_in_memory" && value.is_number_integer()) {
    return Assign(ExpertsInMemoryFromJson(value), &plan->experts_in_memory);
  }
  if (key == "spilled_kv") return Assign(SpilledKvFromJson(value), &plan->spilled_kv);
  constexpr const char* kKnownMembers =
      "there are layout, strategy, weights, kv_cache, wire and gemm (texts), pipeline, decode, "
      "spilled_kv, made_for and predicted (objects), alternatives and lines (lists), threads, "
      "sequences, step_tokens, comm_budget, host_threads and experts_in_memory (whole numbers)";
  if (!value.is_string()) {
    return Error{
        fmt::format("{} is not known or of the wrong kind; {}", Quote(key), kKnownMembers)};
  }
  const auto text = value.get<std::string>();
  if (key == "layout") return Assign(ParseLayout(text), &plan->layout);
  if (key == "weights") return ReadWeights(text, plan);
  if (key == "kv_cache") return ReadKvCache(text, plan);
  if (key == "wire") return Assign(WireFromName(text), &plan->wire);
  if (key == "gemm") return Assign(GemmFromName(text), &plan->gemm);
  // Texts came here, and these are none.
  constexpr std::string_view kOthers[] = {
      "sequences", "pipeline", "decode",      "made_for",    "predicted",    "alternatives",
      "lines",     "threads",  "step_tokens", "comm_budget", "host_threads", "experts_in_memory"};
  const bool is_other = std::ranges::find(kOthers, key) != std::end(kOthers);
  return Error{fmt::format("{} is {}; {}", Quote(key), is_other ? "of the wrong kind" : "not known",
                           kKnownMembers)};
}

}  // namespace

nlohmann::ordered_json ToJson(const Plan& plan) {
  nlohmann::ordered_json object = {{"version", kVersion},
                                   {"layout", ToText(plan.layout)},
                                   {"pipeline", PipelineToJson(plan)},
                                   {"wire", Name(plan.wire)},
                                   {"gemm", Name(plan.gemm)},
                                   {"comm_budget", plan.comm_budget},
                                   {"host_threads", plan.host_threads}};
  if (plan.sequences > 0) object["sequences"] = plan.sequences;
  if (plan.step_tokens > 0) object["step_tokens"] = plan.step_tokens;
  if (plan.experts_in_memory) object["experts_in_memory"] = *plan.experts_in_memory;
  if (plan.spilled_kv) object["spilled_kv"] = ToJson(*plan.spilled_kv);
  if (plan.layout.disaggregates) object["strategy"] = Name(StrategyOf(plan.pipeline));
  if (!plan.lines.empty()) object["lines"] = ToJson(plan.lines);
  if (!plan.weights.empty()) object["weights"] = plan.weights;
  if (!plan.kv_cache.empty()) object["kv_cache"] = plan.kv_cache;
  if (plan.num_threads > 0) object["threads"] = plan.num_threads;
  if (plan.made_for) {
    object["made_for"] = {{"model", plan.made_for->model}, {"ranks", plan.made_for->num_ranks}};
  }
  if (plan.decode) {
    object["decode"] = {{"experts", ExpertsText(*plan.decode)},
                        {"keep", plan.phase_change.keeps_both ? "both" : "one"},
                        {"transition", Name(plan.phase_change.transition)},
                        {"epoch_steps", plan.phase_change.epoch_steps},
                        {"prompts", plan.phase_change.prompts_join ? "join" : "wait"}};
  }
  return object;
}

Result<Plan> PlanFromJson(const json& object, const strategy::Layout& default_layout) {
  if (!object.is_object() || !object.contains("version")) {
    return Error{"not a plan: it has no version"};
  }
  if (object["version"] != kVersion) {
    return Error{fmt::format("a plan of version {}; this program reads version {}",
                             object["version"].dump(), kVersion)};
  }
  Plan plan = {.layout = default_layout};
  if (object.contains("made_for")) {
    if (Status read = ReadMadeFor(object["made_for"], &plan); !read) return read.error();
    plan.layout = DefaultLayout(plan.made_for->num_ranks);
  }
  for (const auto& [key, value] : object.items()) {
    if (key == "version" || key == "made_for" || key == "decode" || key == "strategy") continue;
    if (Status read = ReadMember(key, value, &plan); !read) return read.error();
  }
  if (object.contains("decode")) {
    if (Status read = ReadDecode(object["decode"], &plan); !read) return read.error();
  }
  if (object.contains("strategy")) {
    if (Status read = ReadStrategy(object["strategy"], &plan); !read) return read.error();
  }
  if (Status makes_sense = CheckPipeline(plan); !makes_sense) return makes_sense.error();
  if (Status can = CheckDiskFields(plan); !can) return can.error();
  if (Status fits = CheckLayout(plan); !fits) return fits.error();
  if (plan.made_for && plan.layout.num_ranks() > plan.made_for->num_ranks) {
    return Error{fmt::format(
        "made_for says {}, and the layout {} is of {}: one of them was changed; let convene plan "
        "make the plan again",
        FormatCount(static_cast<uint64_t>(plan.made_for->num_ranks), "rank"), ToText(plan.layout),
        plan.layout.num_ranks())};
  }
  return plan;
}

Result<Plan> ReadPlan(const std::string& path, const strategy::Layout& default_layout) {
  const Result<std::string> text = ReadFileOrStream(path, kMaxFileBytes);
  if (!text) return text.error();
  const Result<json> object = ParseJson(*text);
  if (!object) return object.error().At(path);
  Result<Plan> plan = PlanFromJson(*object, default_layout);
  if (!plan) return plan.error().At(path);
  return plan;
}

}  // namespace convene::plan
