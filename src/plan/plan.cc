#include "plan/plan.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <nlohmann/json.hpp>
#include <optional>
#include <span>

#include "base/digest.h"
#include "base/json.h"
#include "base/quote.h"
#include "base/read_file.h"
#include "base/units.h"
#include "plan/disk_fields.h"

namespace convene::plan {
namespace {

using nlohmann::json;

constexpr int kVersion = 1;
constexpr int kMostRanksMadeFor = 1 << 16;
constexpr int kMostThreads = 1 << 16;
using strategy::kMostChunks;
using strategy::kMostMicroBatches;
constexpr uint64_t kMaxFileBytes = uint64_t{1} << 20;

// Of a whole number; one beyond int64_t, which would be shown as another, is shown as it is
// written.
bool IsBetween(const json& number, int64_t min, int64_t max) {
  return number.get<int64_t>() >= min && number.get<int64_t>() <= max;
}

Status CheckChunks(const json& chunks) {
  if (IsBetween(chunks, 1, kMostChunks)) return {};
  return Error{fmt::format("a pipeline of {} chunks is out of range; it must be 1 to {}, or auto",
                           chunks.dump(), kMostChunks)};
}

Status CheckMicroBatches(const json& micro_batches) {
  if (IsBetween(micro_batches, 1, kMostMicroBatches)) return {};
  return Error{fmt::format("{} micro-batches are out of range; they must be 1 to {}",
                           micro_batches.dump(), kMostMicroBatches)};
}

// By the values of the enumerations.
constexpr std::string_view kCutNames[] = {"tokens", "experts"};
constexpr std::string_view kWireNames[] = {"auto", "f32", "bf16", "fp8", "fp8-both"};
constexpr std::string_view kGemmNames[] = {"auto", "grouped", "dense"};
constexpr std::string_view kStrategyNames[] = {"naive", "pppipe", "fine"};
constexpr std::string_view kOrderNames[] = {"asas", "aass"};
constexpr std::string_view kTransitionNames[] = {"reshard", "int4"};

template <typename Kind>
std::optional<Kind> FromName(std::span<const std::string_view> names, std::string_view name) {
  const auto found = std::ranges::find(names, name);
  if (found == names.end()) return std::nullopt;
  return static_cast<Kind>(found - names.begin());
}

template <typename T, typename Value>
Status Assign(const Result<T>& parsed, Value* value) {
  if (!parsed) return parsed.error();
  *value = *parsed;
  return {};
}

Result<strategy::ChunkCut> CutFromName(std::string_view name) {
  if (const auto cut = FromName<strategy::ChunkCut>(kCutNames, name)) return *cut;
  return Error{fmt::format("chunks are cut by tokens or by experts, not by {}", Quote(name))};
}

bool IsListOfNumbers(const json& value) {
  return value.is_array() &&
         std::all_of(value.begin(), value.end(), [](const json& one) { return one.is_number(); });
}

// Of a pipeline that has some.
Status CheckCuts(const strategy::Pipeline& pipeline) {
  if (pipeline.cut != strategy::ChunkCut::kExperts) {
    return Error{"cuts say where chunks of experts end: they need \"cut\": \"experts\""};
  }
  if (std::ssize(pipeline.cuts) != pipeline.chunks - 1) {
    return Error{fmt::format("{} cuts for {} chunks: there must be one less than chunks",
                             pipeline.cuts.size(), pipeline.chunks)};
  }
  double before = 0;
  for (const double cut : pipeline.cuts) {
    if (!(cut > before && cut < 1)) {
      return Error{
          fmt::format("a cut at {} is out of place: cuts are parts of a rank's experts, "
                      "above 0 and below 1, each greater than the one before",
                      cut)};
    }
    before = cut;
  }
  return {};
}

Status ReadPipeline(const json& object, Plan* plan) {
  if (!object.is_object()) return Error{"pipeline is not an object"};
  for (const auto& [key, value] : object.items()) {
    if (key == "chunks" && value == "auto") {
      plan->auto_pipeline = true;
    } else if (key == "chunks" && value.is_number_integer()) {
      if (Status checked = CheckChunks(value); !checked) return checked;
      plan->pipeline.chunks = value.get<int>();
    } else if (key == "micro_batches" && value.is_number_integer()) {
      if (Status checked = CheckMicroBatches(value); !checked) return checked;
      plan->pipeline.micro_batches = value.get<int>();
    } else if (key == "from_tokens" && value.is_number_integer() &&
               IsBetween(value, 0, kMostCutFromTokens)) {
      plan->cut_from_tokens = value.get<int>();
    } else if (key == "cut" && value.is_string()) {
      const auto cut = CutFromName(value.get<std::string>());
      if (Status set = Assign(cut, &plan->pipeline.cut); !set) return set;
    } else if (key == "cuts" && IsListOfNumbers(value)) {
      plan->pipeline.cuts = value.get<std::vector<double>>();
    } else if (key == "overlap" && value.is_boolean()) {
      plan->pipeline.overlap = value.get<bool>();
    } else if (key == "order" && value.is_string()) {
      const auto order = OrderFromName(value.get<std::string>());
      if (Status set = Assign(order, &plan->pipeline.order); !set) return set;
    } else {
      return Error{fmt::format(
          "pipeline.{} is not known or of the wrong kind; there are chunks (a whole number or "
          "\"auto\"), cut and order (texts), cuts (a list of numbers), overlap (true or false), "
          "micro_batches (a whole number) and from_tokens (0 to {})",
          Quote(key), kMostCutFromTokens)};
    }
  }
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
      "there are layout, strategy, weights, wire and gemm (texts), pipeline, decode, spilled_kv, "
      "made_for and predicted (objects), alternatives and lines (lists), threads, sequences, "
      "step_tokens, comm_budget, host_threads and experts_in_memory (whole numbers)";
  if (!value.is_string()) {
    return Error{
        fmt::format("{} is not known or of the wrong kind; {}", Quote(key), kKnownMembers)};
  }
  const auto text = value.get<std::string>();
  if (key == "layout") return Assign(ParseLayout(text), &plan->layout);
  if (key == "weights") return ReadWeights(text, plan);
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

bool Rounds(Wire wire) { return wire != Wire::kAuto && wire != Wire::kF32; }

std::string_view Name(Wire wire) { return kWireNames[static_cast<size_t>(wire)]; }
std::string_view Name(GemmChoice gemm) { return kGemmNames[static_cast<size_t>(gemm)]; }

Result<Wire> WireFromName(std::string_view name) {
  if (const auto wire = FromName<Wire>(kWireNames, name)) return *wire;
  return Error{
      fmt::format("the wire format is auto, f32, bf16, fp8 or fp8-both, not {}", Quote(name))};
}

Result<GemmChoice> GemmFromName(std::string_view name) {
  if (const auto gemm = FromName<GemmChoice>(kGemmNames, name)) return *gemm;
  return Error{fmt::format("gemm is auto, grouped or dense, not {}", Quote(name))};
}

DisaggregatedStrategy StrategyOf(const strategy::Pipeline& pipeline) {
  if (!pipeline.dispatch_after_shared) return DisaggregatedStrategy::kFine;
  return pipeline.micro_batches == 1 ? DisaggregatedStrategy::kNaive
                                     : DisaggregatedStrategy::kPpPipe;
}

std::string_view Name(DisaggregatedStrategy chosen) {
  return kStrategyNames[static_cast<size_t>(chosen)];
}
std::string_view Name(strategy::AttentionOrder order) {
  return kOrderNames[static_cast<size_t>(order)];
}

Result<DisaggregatedStrategy> DisaggregatedStrategyFromName(std::string_view name) {
  if (const auto chosen = FromName<DisaggregatedStrategy>(kStrategyNames, name)) return *chosen;
  return Error{fmt::format("the strategy is naive, pppipe or fine, not {}", Quote(name))};
}

Result<strategy::AttentionOrder> OrderFromName(std::string_view name) {
  if (const auto order = FromName<strategy::AttentionOrder>(kOrderNames, name)) return *order;
  return Error{fmt::format("the order of attention and shared experts is asas or aass, not {}",
                           Quote(name))};
}

Status SetStrategy(DisaggregatedStrategy chosen, Plan* plan) {
  strategy::Pipeline& pipeline = plan->pipeline;
  pipeline.dispatch_after_shared = chosen != DisaggregatedStrategy::kFine;
  if (chosen == DisaggregatedStrategy::kFine) return {};
  if (chosen == DisaggregatedStrategy::kNaive && pipeline.micro_batches > 1) {
    return Error{
        fmt::format("the strategy naive has one micro-batch, not {}: choose pppipe or fine",
                    pipeline.micro_batches)};
  }
  if (pipeline.chunks > 1) {
    return Error{fmt::format("the strategy {} has one chunk, not {}: choose fine", Name(chosen),
                             pipeline.chunks)};
  }
  if (pipeline.order == strategy::AttentionOrder::kAass) {
    return Error{
        fmt::format("the strategy {} has a shared expert directly behind attention, which "
                    "is no order aass: choose fine",
                    Name(chosen))};
  }
  return {};
}

std::string_view Name(Transition transition) {
  return kTransitionNames[static_cast<size_t>(transition)];
}

Result<Transition> TransitionFromName(std::string_view name) {
  if (const auto transition = FromName<Transition>(kTransitionNames, name)) return *transition;
  return Error{fmt::format("the transition is reshard or int4, not {}", Quote(name))};
}

Status CheckTransition(const Plan& plan) {
  const PhaseChange& change = plan.phase_change;
  if (change.transition == Transition::kReshard || !change.keeps_both) return {};
  return Error{
      "with both divisions of the experts in memory (\"keep\": \"both\") nothing comes from an "
      "int4 "
      "backup: leave the transition int4 out, or keep one"};
}

namespace {

// Of layers on different ranks.
Status CheckStages(const Plan& plan) {
  if (plan.decode) {
    return Error{
        "ranks that have some of the layers each have all experts of these in decode, too: leave "
        "--decode-experts (decode in the plan) out, or layers=pp"};
  }
  if (plan.pipeline.chunks > 1 || plan.auto_pipeline) {
    return Error{
        "experts are not cut into chunks where each rank has some of the layers, since nothing of "
        "a layer goes between ranks: give --pipeline 1 (chunks of the plan's pipeline), and "
        "--micro-batches"};
  }
  if (Rounds(plan.wire)) {
    return Error{fmt::format(
        "rows between ranks that have some of the layers each are never rounded ({}): use --wire "
        "f32",
        Name(plan.wire))};
  }
  return {};
}

}  // namespace

Status CheckLayout(const Plan& plan) {
  const strategy::Pipeline& pipeline = plan.pipeline;
  if (plan.layout.stages > 1) {
    if (Status fits = CheckStages(plan); !fits) return fits;
  }
  if (plan.cut_from_tokens > 0 && (plan.layout.disaggregates || plan.auto_pipeline)) {
    return Error{
        "from which number of tokens on steps are cut is chosen with an automatic pipeline, and "
        "said by lines where attention and experts are on different ranks: leave from_tokens out"};
  }
  if (plan.layout.divides_shared &&
      (plan.changes_layout() || pipeline.chunks > 1 || plan.auto_pipeline)) {
    return Error{
        "slices of shared experts are of layouts with the same experts in both phases, and without "
        "chunks: leave --decode-experts (decode in the plan) out and give --pipeline 1 (chunks of "
        "the plan's pipeline), or leave shared= out"};
  }
  if (!plan.lines.empty() &&
      !(plan.layout.disaggregates && StrategyOf(pipeline) == DisaggregatedStrategy::kFine)) {
    return Error{
        "lines are of plans with the strategy fine and a layout such as "
        "attention=dp1,experts=ep2,disaggregate: leave them out, or give both"};
  }
  if (!plan.layout.disaggregates) {
    const bool is_usual =
        pipeline.order == strategy::AttentionOrder::kAsas && !pipeline.dispatch_after_shared;
    if (is_usual) return {};
    return Error{
        "a strategy, and an order of attention and shared experts, is of layouts whose attention "
        "and experts are on different ranks: add --disaggregate, or leave it out"};
  }
  if (plan.decode) {
    return Error{
        "ranks that have experts alone have the same ones in decode: leave --decode-experts "
        "(decode in the plan) out, or --disaggregate"};
  }
  if (plan.auto_pipeline) {
    return Error{
        "the number of chunks is not chosen automatically where attention and experts are on "
        "different ranks: give it, for instance --pipeline 2:tokens"};
  }
  if (pipeline.cut == strategy::ChunkCut::kExperts) {
    return Error{fmt::format(
        "chunks are cut by tokens where attention and experts are on different ranks: use "
        "--pipeline {}:tokens (\"cut\": \"tokens\" in the plan's pipeline)",
        pipeline.chunks)};
  }
  if (!pipeline.overlap) {
    return Error{
        "--no-overlap is of layouts without --disaggregate; there the strategy naive is the one "
        "in which nothing overlaps"};
  }
  return {};
}

Status ParsePipeline(std::string_view text, Plan* plan) {
  plan->pipeline.cuts.clear();
  const size_t colon = text.find(':');
  if (colon != std::string_view::npos) {
    const auto cut = CutFromName(text.substr(colon + 1));
    if (Status set = Assign(cut, &plan->pipeline.cut); !set) return set;
    text = text.substr(0, colon);
  }
  plan->auto_pipeline = text == "auto";
  if (plan->auto_pipeline) return {};
  int chunks = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), chunks);
  if (error != std::errc() || end != text.data() + text.size()) {
    return Error{fmt::format("a pipeline is a number of chunks or auto, not {}", Quote(text))};
  }
  if (Status checked = CheckChunks(chunks); !checked) return checked;
  plan->pipeline.chunks = chunks;
  return {};
}

Status CheckPipeline(const Plan& plan) {
  const strategy::Pipeline& pipeline = plan.pipeline;
  if (!pipeline.cuts.empty()) {
    if (Status fit = CheckCuts(pipeline); !fit) return fit;
  }
  if (pipeline.overlap) return {};
  if (plan.auto_pipeline) {
    return Error{
        "chunks are chosen by what they let overlap, which is nothing with --no-overlap (overlap "
        "of the plan's pipeline): give their number, for instance --pipeline 1 (chunks of the "
        "plan's pipeline), or allow overlap"};
  }
  if (pipeline.micro_batches == 1) return {};
  return Error{
      fmt::format("{} micro-batches without overlap only cost time: one computes while "
                  "another one exchanges; choose 1, or allow overlap",
                  pipeline.micro_batches)};
}

std::string ModelHash(const json& configuration) {
  const std::string text = configuration.dump();  // keys in order
  return fmt::format("{:016x}", DigestOf(std::as_bytes(std::span(text))));
}

Status CheckMadeFor(const Plan& plan, const std::string& model_hash, int num_ranks) {
  if (!plan.made_for) return {};
  const MadeFor& made_for = *plan.made_for;
  if (made_for.model != model_hash) {
    return Error{
        fmt::format("the plan was made for another model (its configuration has the hash {}, this "
                    "one's {}): make one for this model with convene plan",
                    made_for.model, model_hash)};
  }
  if (made_for.num_ranks > num_ranks) {
    return Error{fmt::format(
        "the plan was made for {} ranks, and there are {}: start {}, or make another plan with "
        "convene plan",
        made_for.num_ranks, num_ranks, made_for.num_ranks)};
  }
  return {};
}

nlohmann::ordered_json ToJson(const Plan& plan) {
  nlohmann::ordered_json pipeline = {{"chunks", plan.pipeline.chunks}};
  if (plan.auto_pipeline) pipeline["chunks"] = "auto";
  pipeline["cut"] = kCutNames[static_cast<size_t>(plan.pipeline.cut)];
  if (!plan.pipeline.cuts.empty()) pipeline["cuts"] = plan.pipeline.cuts;
  pipeline["overlap"] = plan.pipeline.overlap;
  pipeline["micro_batches"] = plan.pipeline.micro_batches;
  if (plan.cut_from_tokens > 0) pipeline["from_tokens"] = plan.cut_from_tokens;
  if (plan.layout.disaggregates) pipeline["order"] = Name(plan.pipeline.order);
  nlohmann::ordered_json object = {{"version", kVersion},
                                   {"layout", ToText(plan.layout)},
                                   {"pipeline", pipeline},
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
