// What a search for a plan is asked, and what it answers. How it searches is plan_search.h; what
// becomes of the answer in words is explain_plan.h.
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "cost/step_interval.h"
#include "model/model_spec.h"
#include "plan/plan.h"
#include "planner/step_pricer.h"
#include "planner/whole_step.h"
#include "planner/workload.h"

namespace convene::planner {

// What may change the numbers that a model computes. By default a plan's logits are bitwise those
// of one rank with the weights that were asked for.
struct Allowed {
  bool layout = false;   // heads and experts in slices: sums are divided in other places
  bool wire = false;     // rows rounded on their way between ranks
  bool weights = false;  // other formats than the first one
  bool transition = false;
};

// What a rank of a plan takes of memory.
struct RankMemory {
  uint64_t weights_bytes = 0;
  uint64_t kv_bytes = 0;       // for all sequences of the workload at their full length
  uint64_t working_bytes = 0;  // of steps and exchanges, and the program
  // What that rank has, where ranks differ (PlanQuestion::rank_memory); 0: as much as all.
  uint64_t limit_bytes = 0;

  uint64_t total() const { return weights_bytes + kv_bytes + working_bytes; }
  // Of a rank that has `common` bytes unless it differs from others.
  uint64_t limit(uint64_t common) const { return limit_bytes > 0 ? limit_bytes : common; }
  bool fits(uint64_t common) const { return total() <= limit(common); }
};

// What somebody has decided already. Unset: the search's to decide.
struct Constraints {
  std::optional<int> num_ranks = {};
  std::optional<int> num_threads = {};
  // That all ranks together may have threads on, where fewer ranks than there are may be used, too:
  // numbers of ranks of which nothing is known are then left out.
  std::optional<int> num_cores = {};
  std::optional<strategy::Layout> layout = {};
  // How decode divides the experts, as in a layout ("tp2"): plans that divide them so in prefill,
  // too, are not looked at.
  std::optional<std::string> decode_experts = {};
  std::optional<strategy::Pipeline> pipeline = {};  // chunks, cut and overlap, with micro-batches
  std::optional<int> micro_batches = {};
  // Only layouts with attention and experts on different ranks, and how these take turns. The
  // latter two only beside the former, or beside such a layout.
  bool disaggregates = false;
  std::optional<plan::DisaggregatedStrategy> strategy = {};
  std::optional<strategy::AttentionOrder> order = {};
  std::optional<plan::Wire> wire = {};
  // Steps have PlanQuestion::step_tokens: no plan has a number of its own, and none has a group of
  // ranks with more sequences than that, each of which wants a token of a step.
  bool keeps_step_tokens = false;
  // Weights lie there as matrices that cannot be cut (a packed directory): plans that divide heads
  // or slice experts cannot run. PlanQuestion::memory_of says so.
  bool whole_matrices = false;
};

struct PlanQuestion {
  const model::ModelSpec& spec;
  const Workload& workload;
  const PricerSource& source;
  int num_ranks = 1;  // that there are; fewer may be used
  // Most tokens of a step of one group of ranks, of plans that do not say it themselves
  // (plan::Plan::step_tokens).
  int step_tokens = 512;
  // Formats of weights that may be used, the most precise first. The first in which a plan that may
  // be chosen fits memory is taken, or with `allowed.weights` the one that is fastest.
  std::vector<std::string> formats = {"bf16"};
  bool int8_kv = false;                                  // as RankSetup's, of all plans
  int expand_from_tokens = strategy::kExpandFromTokens;  // as AttentionRole's
  bool one_host = true;                                  // all ranks share one
  Allowed allowed = {};
  Constraints constraints = {};
  std::optional<plan::Plan> present = {};  // that is run now: it wins where a gain is not certain

  // Asked of what lies above this folder. The most that a rank takes, or where ranks have unlike
  // memories the one for which it is the most of what it has; errors: the model cannot be divided
  // so.
  std::function<Result<RankMemory>(const RankSetup&, const plan::Plan&, int batch)> memory_of = {};
  // Of ranks whose experts may lie on a disk (plan::CanPage): of how many of its own of all layers
  // each has room beside the rest in so much memory (plan::Plan::experts_in_memory). Errors: not
  // for the fewest that can be worked with; the model has none. Empty: plans keep all weights in
  // memory, or as many as they say.
  std::function<Result<int>(const RankSetup&, const plan::Plan&, int batch, uint64_t memory_bytes)>
      experts_that_fit = {};
  // Of one rank whose experts lie on a disk: its plan where keys and values of a batch lie there,
  // too, but for those that get `kv_share` of what the memory has left beside the least of
  // everything; the rest is for experts (experts_in_memory and spilled_kv). Errors: as
  // experts_that_fit. Empty: they stay in memory.
  std::function<Result<plan::Plan>(const RankSetup&, const plan::Plan&, int batch,
                                   uint64_t memory_bytes, double kv_share)>
      spilled_that_fit = {};
  // That each of so many has; of ranks with unlike memories the least that one of them has.
  std::function<uint64_t(int num_ranks)> memory_per_rank = {};
  // Of all ranks that there are, where their memories differ; empty: they do not, or nothing is
  // known.
  std::vector<uint64_t> rank_memory = {};
  std::function<strategy::ElementBytes(const std::string& weights, plan::Wire)> bytes_of = {};
  std::function<double()> clock = {};  // seconds, for the time of the search itself

  std::vector<std::string> passes_off = {};  // names of passes
};

// Sequences that a plan must have room for at least. As many as run together, but of requests that
// arrive, and of goodput, which takes fewer than the batch where so many keep no limits or have no
// room, one: how many run together is found with the figures.
int FewestTogether(const Workload& workload);

// Of the weights of all ranks together, whatever the plan, where these share a host and with it its
// last-level cache; 0: they do not, or it is not known.
double WeightBytesOf(const PlanQuestion& question, const RankSetup& setup);

// Whether it is a pass of the search that was switched off.
bool IsOff(const PlanQuestion& question, std::string_view pass);

// The same question of another workload, which it refers to.
PlanQuestion WithWorkload(const PlanQuestion& question, const Workload& workload);

// Predicted of a plan for the workload.
struct PlanFigures {
  int batch = 1;              // sequences that run together
  double ttft = 0;            // seconds until all their prompts are computed
  double time_per_token = 0;  // seconds of a step of generated tokens
  double throughput = 0;      // generated tokens per second, prompts counted into the time
  cost::Interval ttft_interval = {};
  cost::Interval time_per_token_interval = {};
  cost::Interval throughput_interval = {};
  double extrapolated_share = 0;
  double imbalance = 1;  // as WholeStep's, over prefill and decode
  // Of a plan that divides the experts otherwise in decode: what moving them there and back takes
  // once, which is in the throughput and the score alone; and what the integer program took that
  // found the plan, which is in the time to first token and the throughput, but neither in the
  // score nor held against limits.
  double transition_seconds = 0;
  double solver_seconds = 0;

  // What is to be small: seconds per generated token, or of the objective's own time; at an arrival
  // rate seconds of a request in place of those per token, which the rate decides; of which
  // kinds of task, and of steps with overlap, it is made; and what of it is no task of its own:
  // where requests arrive at a rate, a prompt waits for those before it and for steps of generated
  // tokens, and these for prompts.
  double score = 0;
  cost::KindSeconds path = {};
  double overlapped_seconds = 0;
  double waiting_seconds = 0;
};

// For the interval of a difference of scores. What is waited for is made of the same kinds of task,
// and as wrong as they are.
cost::Outline OutlineOfScore(const PlanFigures& figures);

struct Candidate {
  RankSetup setup;
  plan::Plan plan;
  RankMemory memory = {};
  uint64_t memory_limit = 0;
  std::optional<PlanFigures> figures = {};
  std::vector<std::string> needs = {};  // words of --allow without which it is not chosen
  std::string added_by = {};            // names of passes
  std::string rejected_by = {};         // empty: it is ranked
  std::string reason = {};              // why it was rejected
  std::string not_refined = {};         // why no pass looked for pipelines of it; empty: they did

  bool is_ranked() const { return rejected_by.empty() && figures.has_value(); }
  bool is_allowed() const { return needs.empty(); }
  // To a format that is neither the first that fits nor allowed.
  bool changes_weights() const { return std::ranges::find(needs, "weights") != needs.end(); }
};

// "4 ranks x 2 threads, int8, attention=dp4,experts=ep4, 8 chunks of tokens"
std::string Describe(const Candidate& candidate);

// What a pass did.
struct PassReport {
  std::string name;
  std::string purpose;
  bool is_off = false;
  double seconds = 0;
  int num_added = 0;
  int num_rejected = 0;
  int num_simulated = 0;   // steps
  double best_before = 0;  // score of the best allowed candidate; 0: none yet
  double best_after = 0;
  std::string remark = {};  // what else it found
};

struct PlanAnswer {
  std::vector<Candidate> candidates;  // all of them; those that are ranked first, the best before
  int chosen = -1;                    // of candidates
  int fastest = -1;                   // allowed one with the least score
  std::string why_chosen;             // where it is not the fastest
  std::vector<PassReport> passes;
  double seconds = 0;
  int num_simulated = 0;
};

// Whether the plan's logits are bitwise those of one rank: no head and no expert is cut, shares of
// experts are whole branches of the tree of sums (docs/decisions/0001-numerics.md), and what
// travels is exact.
bool KeepsLogits(const model::ModelSpec& spec, const plan::Plan& plan, bool one_host);
// The layout's part of that.
bool CutsNothing(const model::ModelSpec& spec, const strategy::Layout& layout);

}  // namespace convene::planner
