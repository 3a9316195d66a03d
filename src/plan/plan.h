// A plan: how a model is run on its ranks, as decisions alone, small and readable. What follows
// from them is strategy/ (tasks) and runtime/ (work); how they are found is not here.
#pragma once

#include <algorithm>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "plan/choices.h"
#include "plan/lane_lines.h"
#include "strategy/layout.h"
#include "strategy/step.h"

namespace convene::plan {

inline constexpr int kMostCommBudget = 1024;  // no machine has a core for each of more
inline constexpr int kMostEpochSteps = 1 << 20;
inline constexpr int kMostCutFromTokens = 1 << 20;
inline constexpr int kMostStepTokens = 1 << 16;
inline constexpr int kMostSequences = 4096;  // that run together

// How decode comes to its own division of the experts.
struct PhaseChange {
  // Both divisions stay in memory, and only the first change moves anything.
  bool keeps_both = false;
  // Steps of decode until prompts that have arrived meanwhile get their own division again; 0: a
  // stream to which requests come while others run has that of prefill always. Where all requests
  // are there at once, all prompts come first, then all generation, whatever this says.
  int epoch_steps = 0;
  // What prompts do that arrive within an epoch: wait for its end, or join its steps, with the
  // experts divided as in decode.
  bool prompts_join = false;
  Transition transition = Transition::kReshard;

  bool operator==(const PhaseChange&) const = default;
};

// Keys and values of a batch that lie on a disk but for a part of them (decision 0028), on a rank
// whose experts are read from one, too.
struct SpilledKv {
  // Of the KV cache; what of the plan's sequences has no room there is spilled.
  int blocks_in_memory = 0;
  // What is read has room in so many buffers, of so many blocks each: those of a part of the step's
  // sequences.
  int buffers = 2;
  int buffer_blocks = 1;

  bool operator==(const SpilledKv&) const = default;
};

// What a plan was made for. Whoever executes it compares, and refuses a plan for something else.
struct MadeFor {
  std::string model;  // ModelHash of its configuration
  int num_ranks = 1;

  bool operator==(const MadeFor&) const = default;
};

struct Plan {
  strategy::Layout layout = {};
  // Of steps of generated tokens alone, where these divide the experts otherwise; attention is the
  // same in both phases, since the KV cache is.
  std::optional<strategy::Layout> decode = {};
  PhaseChange phase_change = {};  // of a plan with decode
  strategy::Pipeline pipeline = {};
  // Most tokens of a step of each group of ranks; 0: as it is asked for (--chunk). More of them
  // read the weights less often for long prompts, and take more working memory.
  int step_tokens = 0;
  // Most sequences that run together; 0: as it is asked for (--max-batch). More of them read the
  // weights less often for each, and take more memory for keys and values. Commands that run one
  // sequence run one.
  int sequences = 0;
  // Steps of fewer tokens, over all groups of ranks, are neither cut into chunks nor into
  // micro-batches: those of generated tokens read weights once for each, and have little else to
  // do. Not of a layout that disaggregates, whose steps have lines.
  int cut_from_tokens = 0;
  // Of a layout that disaggregates: what steps take, so that each has its own micro-batches, chunks
  // and order (planner/step_turns.h), of which there are at most as many as in `pipeline`. None:
  // all steps have those of `pipeline`.
  std::vector<LaneLines> lines = {};
  // The number of chunks is chosen by what the simulator says of this machine.
  bool auto_pipeline = false;
  Wire wire = Wire::kAuto;
  GemmChoice gemm = GemmChoice::kAuto;
  int comm_budget = 0;   // threads of each rank that products leave to exchanges under way
  int host_threads = 0;  // of each rank, those of the host lane; 0: it has none of its own
  // Of each rank: of its routed experts of all layers at most so many stay in memory, and the
  // others are read from a disk while the model runs (decision 0020). Unset: all do, or where they
  // do not fit, as many as there is room for.
  std::optional<int> experts_in_memory = {};
  // With experts_in_memory, of a batch on one rank. Unset: keys and values stay in memory, or as
  // `convene batch` chooses for its requests. With `sequences`, which blocks and buffers are for.
  std::optional<SpilledKv> spilled_kv = {};
  std::string weights = {};   // their format, bf16, int8, int4 or f32; empty: as it is asked for
  std::string kv_cache = {};  // keys and values: bf16 or int8; empty: as it is asked for
  int num_threads = 0;        // of each rank; 0: its share of the cores
  std::optional<MadeFor> made_for = {};

  int step_tokens_or(int usual) const { return step_tokens > 0 ? step_tokens : usual; }
  // Of so many sequences that run together, those of the group of ranks that has the most: they are
  // dealt out evenly.
  int sequences_of_group(int num_sequences) const {
    return (num_sequences + layout.attention_dp - 1) / layout.attention_dp;
  }
  // Of so many sequences that run together: a group's step has room for a token of each of its own.
  int step_tokens_for(int num_sequences, int usual) const {
    return std::max(step_tokens_or(usual), sequences_of_group(num_sequences));
  }
  // Whether experts move between the phases.
  bool changes_layout() const { return decode && *decode != layout; }
  // Whether they come to decode from a backup in int4.
  bool loads_experts() const {
    return changes_layout() && phase_change.transition == Transition::kInt4;
  }
  bool operator==(const Plan&) const = default;
};

// Sets what `chosen` says of plan->pipeline, which has its other numbers already. Errors:
// micro-batches, chunks or an order that they do not have.
Status SetStrategy(DisaggregatedStrategy chosen, Plan* plan);

// Errors: what a layout that disaggregates does not go together with (another division in decode,
// chunks of experts or chosen automatically, no overlap), or what only such a layout has without
// it; and what one that divides layers does not (another division in decode, chunks, rows that are
// rounded).
Status CheckLayout(const Plan& plan);

// Errors: a backup of experts that stay in memory in both divisions.
Status CheckTransition(const Plan& plan);

// Error: the plan's ranks are of attention or of experts alone, or have other experts in decode;
// then all their weights must be in memory.
Status CanPage(const Plan& plan);
// Error: besides, several ranks, or experts that all stay in memory; then keys and values do, too.
Status CanSpill(const Plan& plan);

// What a layout says of the experts, alone: "ep3:1", "tp2". Errors: as ParseLayout, which also
// wants as many ranks for both.
Status CheckExperts(std::string_view experts);

// Sets plan->decode: `experts` as in a layout, attention as in plan->layout. Errors: as
// ParseLayout; a plan->layout that disaggregates.
Status ParseDecodeExperts(std::string_view experts, Plan* plan);

// "attention=tp2dp2,experts=ep4"; experts may be epN, tpN, sliceN (as tpN) or epNtpN, and in the
// place of N shares that are alike the weights of each, ep3:1. What is left out is whole. With
// ",disaggregate" behind them attention and experts are on different ranks. Or "layers=pp2",
// "pp3:1" with weights: each rank has some of the layers. Errors: other words, degrees or weights
// that are not positive or too large, products that differ (but for layouts that disaggregate).
Result<strategy::Layout> ParseLayout(std::string_view text);
std::string ToText(const strategy::Layout& layout);
// Of it what it says of the experts, alone, as CheckExperts wants it: "ep3:1", "tp2".
std::string ExpertsText(const strategy::Layout& layout);

// Attention data parallel, experts expert parallel.
strategy::Layout DefaultLayout(int num_ranks);

// Errors: another number of ranks than the layout has; says which layouts would fit.
Status CheckRanks(const strategy::Layout& layout, int num_ranks);

// "4", "auto", "4:experts": chunks and what is cut.
Status ParsePipeline(std::string_view text, Plan* plan);

// Errors: micro-batches, or chunks that are chosen automatically, without overlap; cuts that are
// not those of its chunks.
Status CheckPipeline(const Plan& plan);

// 16 hexadecimal digits that tell models apart by their config.json, whatever its blanks and the
// order of its keys.
std::string ModelHash(const nlohmann::json& configuration);

// Errors: the plan was made for another model, or for more ranks than there are. Of a plan that
// does not say what it was made for: none.
Status CheckMadeFor(const Plan& plan, const std::string& model_hash, int num_ranks);

// One object, with "version": 1.
nlohmann::ordered_json ToJson(const Plan& plan);
// What the object leaves out is as in Plan, and the layout that of as many ranks as it was made
// for, or `default_layout` where it does not say that. "predicted" (an object) and "alternatives"
// (a list) are what was foreseen when the plan was made; they decide nothing. Errors: another
// version, values out of range, keys that are not known.
Result<Plan> PlanFromJson(const nlohmann::json& object,
                          const strategy::Layout& default_layout = {});
Result<Plan> ReadPlan(const std::string& path, const strategy::Layout& default_layout = {});

}  // namespace convene::plan
