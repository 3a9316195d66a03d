// Hybrid adaptive parallelism (HAP; systems: section 2): one strategy for attention, one for the
// experts in prefill and one for them in decode, the best by an integer program over simulated
// layers, memory and the transition between both layouts of the experts. Pure, and one pass of the
// planner among others; it executes nothing.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "base/result.h"
#include "model/model_spec.h"
#include "planner/hybrid_costs.h"
#include "planner/hybrid_memory.h"

namespace convene::planner {

// Whether the layout of the experts may change between phases, and how.
enum class TransitionKind {
  kNone,     // one layout for both phases
  kReshard,  // by a collective
  kUpload,   // or from a backup of 4 bits in the host's memory: logits change
};

struct HybridQuestion {
  const model::ModelSpec& spec;
  int num_ranks = 1;
  int batch = 1;  // sequences, of all ranks together
  int prompt_tokens = 1;
  int gen_tokens = 1;
  // Most tokens of a step of prefill: of a group of ranks, which has sequences of its own, and of
  // all groups together; 0: no limit.
  int step_tokens = 0;
  int total_step_tokens = 0;
  // Of equal parts of the layers, or one for all; none: all experts are alike.
  std::vector<cost::ExpertShares> shares = {};
  strategy::ElementBytes bytes = {};
  // The head is divided among all ranks, and so are shared experts where all routed ones are slices
  // (strategy::Layout). Otherwise one rank has the head, and each has shared experts whole.
  bool divides_rest = false;
  bool overlap = true;  // whether anything is computed beside an exchange (strategy::Pipeline)

  double memory_bytes = 0;       // of a rank
  double host_memory_bytes = 0;  // of a host, for the backup; 0: enough
  TransitionKind transition = TransitionKind::kUpload;
  double upload_bytes_per_second = 0;  // from the host's memory to a rank; 0: no backup

  PriceStep price = {};
  PriceOfLayout price_of = {};  // of steps; none: `price` is that of all layouts
  std::function<double(double bytes)> pass_seconds = {};  // of a pass over a rank's memory
};

// A strategy that was not taken into the program.
struct PrunedStrategy {
  std::string strategy;  // "attention tp8", "experts ep8tp1"
  std::string reason;
};

struct HybridCandidate {
  HybridTriple triple;
  strategy::Layout prefill;
  strategy::Layout decode;  // of the experts; attention as in prefill
  double seconds = 0;       // of all prompts and all generated tokens
  double prefill_seconds = 0;
  double token_seconds = 0;  // of a step of generated tokens
  double transition_seconds = 0;
  std::string transition_by = {};  // "re-shard", "upload"; empty: nothing changes
  double memory_bytes = 0;         // of the rank and the phase with most
  std::string rejected = {};       // why it is not feasible; empty: it is
};

struct HybridAnswer {
  std::vector<AttentionStrategy> attention;
  std::vector<ExpertStrategy> experts;
  std::vector<PrunedStrategy> pruned;
  // The mean step of prefill, by attention, and of generated tokens.
  std::vector<PhaseStep> prefill;
  PhaseStep decode;
  HybridProgram program;                    // of prefill its tables have all steps together
  std::vector<HybridCandidate> candidates;  // all triples, feasible ones first, the fastest before
  int chosen = -1;                          // of candidates; the solver's optimum
};

// Errors: degrees of which none fits the model; nothing fits memory, with the least that would do;
// those of `price`; a number of ranks that is no power of two.
Result<HybridAnswer> SearchHybrid(const HybridQuestion& question);

// Device-limited routing (DeepSeek-V2, section 2.2.2) as a constraint of where experts lie: a
// token's experts are in few groups, and so on few ranks, as long as no group is split. Why so many
// shares of the experts would split one; empty: they do not, or routing has no such limit.
std::string WhySplitsGroups(const model::MoeSpec& moe, int num_shares);

std::string ToText(const AttentionStrategy& strategy);  // "attention=tp2dp4"
std::string ToText(const ExpertStrategy& strategy);     // "experts=ep2tp4"

}  // namespace convene::planner
