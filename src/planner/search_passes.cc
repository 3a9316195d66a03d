// The passes of the search, in their order. What they work on is plan_search.h.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "base/units.h"
#include "planner/asked_for.h"
#include "planner/asked_plans.h"
#include "planner/changes_pass.h"
#include "planner/disaggregated_pass.h"
#include "planner/disaggregated_turns.h"
#include "planner/hybrid_pass.h"
#include "planner/paged_plans.h"
#include "planner/pipeline_passes.h"
#include "planner/plan_search.h"
#include "planner/share_pass.h"
#include "planner/step_sizes_pass.h"

namespace convene::planner {
namespace {

using strategy::Layout;

// --- Who could do the work.

constexpr double kUnlimited = std::numeric_limits<double>::infinity();
constexpr int kAnyCores = std::numeric_limits<int>::max();

bool IsWanted(const std::optional<int>& constraint, int value) {
  return constraint.value_or(value) == value;
}

void AddSetups(PlanSearch& search) {
  const PlanQuestion& question = search.question();
  for (const std::string& format : question.formats) {
    for (int ranks = 1; ranks <= question.num_ranks; ++ranks) {
      if (!IsWanted(question.constraints.num_ranks, ranks)) continue;
      if (question.constraints.layout && question.constraints.layout->num_ranks() != ranks)
        continue;
      std::vector<int> threads = question.source.ThreadsOf(ranks, format);
      std::erase_if(threads, [&](int count) {
        return !IsWanted(question.constraints.num_threads, count) ||
               int64_t{1} * ranks * count > question.constraints.num_cores.value_or(kAnyCores);
      });
      const plan::Plan plan = UsualPlan(question, ranks);
      const bool int8_kv = question.int8_kv;
      for (const int count : threads) {
        search.Add({.setup = {ranks, count, format, int8_kv}, .plan = plan});
      }
      if (!threads.empty()) continue;
      if (question.constraints.num_cores && ranks < question.num_ranks) continue;  // not asked for
      search.Add({.setup = {ranks, question.constraints.num_threads.value_or(0), format, int8_kv},
                  .plan = plan});
      search.Reject(search.candidates().back(),
                    question.source.WhyUnknown(ranks, question.constraints.num_threads, format));
    }
  }
}

// Where fewer ranks are better than all, a link is slow or there is little to do, and then half of
// them say so, too. Numbers between have most of the layouts.
void ChooseNumbersOfRanks(PlanSearch& search) {
  const Constraints& constraints = search.question().constraints;
  if (constraints.num_ranks || constraints.layout) return;  // there is one number
  const int all = search.question().num_ranks;
  for (Candidate& candidate : search.candidates()) {
    const int ranks = candidate.setup.num_ranks;
    if (!candidate.rejected_by.empty() || IsSearchedNumber(ranks) || ranks == all) continue;
    search.Reject(candidate,
                  fmt::format("of more than {} ranks, only powers of two and all {} are searched "
                              "(--without ranks: every number; --ranks {}: up to this one)",
                              kFewRanks, all, ranks));
  }
}

// --- Which part of the work each rank could have.

// Of a plan that divides the experts in decode as in prefill, where another division was asked for.
std::string WhyNotInDecode(plan::Plan plan, const std::string& experts) {
  const Status parsed = plan::ParseDecodeExperts(experts, &plan);
  if (!parsed) return parsed.error().message;
  if (const Status fits = plan::CheckLayout(plan); !fits) return fits.error().message;
  if (plan.changes_layout()) return "another division of the experts in decode was asked for";
  return fmt::format("it divides the experts as {} in prefill, too: leave --decode-experts out",
                     experts);
}

// The same with the division of decode that was asked for: with experts that move, and with both
// divisions in memory.
std::vector<plan::Plan> WithDecode(PlanSearch& search, const Candidate& candidate,
                                   const std::string& experts) {
  plan::Plan plan = candidate.plan;
  const Status parsed = plan::ParseDecodeExperts(experts, &plan);
  if (!parsed || !plan.changes_layout() || !plan::CheckLayout(plan)) {
    const size_t before = search.candidates().size();
    search.Add(candidate);
    const bool is_new = search.candidates().size() > before;
    if (is_new) {
      search.Reject(search.candidates().back(), WhyNotInDecode(candidate.plan, experts));
    }
    return {};
  }
  plan::Plan both = plan;
  both.phase_change.keeps_both = true;
  std::vector<plan::Plan> plans = {plan, both};
  if (CanLoad(search.question(), candidate.setup)) {
    plan.phase_change.transition = plan::Transition::kInt4;
    plans.push_back(plan);
  }
  for (plan::Plan& each : plans) SetEpochs(search, candidate.setup, each);
  return plans;
}

void AddLayouts(PlanSearch& search) {
  const Constraints& constraints = search.question().constraints;
  const size_t num_setups = search.candidates().size();
  for (size_t i = 0; i < num_setups; ++i) {
    if (!search.candidates()[i].rejected_by.empty()) continue;
    const Candidate usual = search.candidates()[i];
    const std::optional<Layout>& wanted = constraints.layout;
    const bool is_wanted = !wanted || *wanted == usual.plan.layout;
    if (wanted && is_wanted && !constraints.decode_experts) continue;
    if (!is_wanted) search.Reject(search.candidates()[i], "another layout was asked for");
    if (is_wanted && constraints.decode_experts) {
      search.Reject(search.candidates()[i],
                    WhyNotInDecode(usual.plan, *constraints.decode_experts));
    }
    for (const Layout& layout :
         wanted ? std::vector{*wanted}
                : LayoutsOf(usual.setup.num_ranks, search.question().spec.num_layers())) {
      Candidate candidate = usual;
      candidate.plan.layout = layout;
      if (layout.disaggregates) continue;  // AddDisaggregated does
      // Ranks with some layers each have all experts of these in both phases.
      if (!wanted && layout.stages > 1 && constraints.decode_experts) continue;
      // All layers of a decoder attend to what the encoder says.
      if (!wanted && layout.stages > 1 && search.question().spec.has_encoder()) continue;
      if (!plan::CheckLayout(candidate.plan)) continue;  // what was asked for it has not
      if (!constraints.decode_experts) {
        search.Add(std::move(candidate));
        continue;
      }
      for (const plan::Plan& plan : WithDecode(search, candidate, *constraints.decode_experts)) {
        candidate.plan = plan;
        search.Add(candidate);
      }
    }
  }
}

// --- Memory.

void CheckMemory(PlanSearch& search) {
  for (Candidate& candidate : search.candidates()) {
    if (candidate.rejected_by.empty()) search.CheckMemory(candidate);
  }
}

// Whether there is no room for it with as many sequences as could run together.
bool IsTooLarge(const PlanQuestion& question, const Candidate& whole) {
  if (whole.rejected_by == "memory") return true;
  if (!whole.rejected_by.empty() || question.workload.objective != Objective::kGoodput)
    return false;
  const auto memory = question.memory_of(whole.setup, whole.plan, question.workload.batch);
  return memory && !memory->fits(whole.memory_limit);
}

// Ranks whose weights do not fit, with as many experts of each in memory as there is room for; and
// with keys and values of the batch on the disk, too, which leaves room for more experts and more
// sequences. Prices say whether that is better.
void AddPaged(PlanSearch& search) {
  const PlanQuestion& question = search.question();
  if (!question.experts_that_fit) return;
  const size_t count = search.candidates().size();
  for (size_t i = 0; i < count; ++i) {
    const Candidate whole = search.candidates()[i];
    if (whole.memory_limit == 0 || !plan::CanPage(whole.plan) || !IsTooLarge(question, whole)) {
      continue;
    }
    const PagedPlans plans = PagedPlansOf(question, whole.setup, whole.plan,
                                          question.workload.batch, whole.memory_limit);
    Candidate paged{.setup = whole.setup, .plan = whole.plan, .memory_limit = whole.memory_limit};
    paged.plan.experts_in_memory = 1;
    if (plans.experts) paged.plan = *plans.experts;
    Candidate* const added = search.Add(std::move(paged));
    if (added != nullptr && !plans.experts) search.Reject(*added, plans.experts.error().message);
    if (added != nullptr && plans.experts) search.CheckMemory(*added);
    for (const plan::Plan& spilled : plans.spilled) {
      Candidate* const one =
          search.Add({.setup = whole.setup, .plan = spilled, .memory_limit = whole.memory_limit});
      if (one != nullptr) search.CheckMemory(*one);
    }
  }
}

// --- Prices.

void PriceAll(PlanSearch& search) {
  for (Candidate& candidate : search.candidates()) {
    if (candidate.rejected_by.empty() && !candidate.figures) search.Price(candidate);
  }
}

// Of weights in a format that is not allowed, layouts that are priced of many ranks: they are there
// to be compared with.
constexpr size_t kMostLayoutsToCompare = 4;

// Of many ranks there are hundreds of layouts, and each format would take as long as the one that
// is chosen from.
void PriceLayouts(PlanSearch& search) {
  std::vector<const Candidate*> best;
  for (Candidate& candidate : search.candidates()) {
    if (!candidate.rejected_by.empty() || search.IsForComparison(candidate)) continue;
    search.Price(candidate);
    if (candidate.is_ranked()) best.push_back(&candidate);
  }
  std::ranges::stable_sort(best, {}, [](const Candidate* one) { return one->figures->score; });
  if (best.size() > kMostLayoutsToCompare) best.resize(kMostLayoutsToCompare);
  for (Candidate& candidate : search.candidates()) {
    if (!candidate.rejected_by.empty() || !search.IsForComparison(candidate)) continue;
    const bool is_compared = best.empty() || std::ranges::any_of(best, [&](const Candidate* one) {
                               return one->plan.layout == candidate.plan.layout;
                             });
    if (is_compared) {
      search.Price(candidate);
    } else {
      search.Reject(candidate, fmt::format("weights in {} are not allowed (--allow weights), and "
                                           "of many ranks only the {} best layouts are compared",
                                           candidate.setup.weights, kMostLayoutsToCompare));
    }
  }
}

// Layouts whose head is tried divided, the best ones: what is gained is little beside what layouts
// differ by.
constexpr size_t kMostWithHeads = 8;

bool HasSharedExperts(const model::ModelSpec& spec) {
  return std::ranges::any_of(spec.layers, [](const model::LayerSpec& layer) {
    return layer.moe && layer.moe->shared_intermediate_size > 0;
  });
}

bool HasDenseLayers(const model::ModelSpec& spec) {
  const auto is_dense = [](const model::LayerSpec& layer) { return !layer.moe; };
  return std::ranges::any_of(spec.layers, is_dense) ||
         std::ranges::any_of(spec.encoder_layers, is_dense);
}

// What a layout of ranks divides besides attention and experts.
struct Divided {
  bool head = false;
  bool shared = false;
  bool dense = false;
};

bool Divides(const Divided& divided, Candidate& candidate) {
  Layout& layout = candidate.plan.layout;
  layout.divides_head = divided.head;
  layout.divides_shared = divided.shared;
  layout.divides_dense = divided.dense;
  if (candidate.plan.decode) {
    candidate.plan.decode->divides_head = divided.head;
    candidate.plan.decode->divides_dense = divided.dense;
  }
  return plan::CheckLayout(candidate.plan).ok();
}

// The head, for which the others wait at the end of each step; shared experts, where the others are
// in slices, and dense blocks, where heads are divided: with few rows some ranks have none, and
// nothing of these to do.
void DivideHeads(PlanSearch& search) {
  if (search.question().constraints.layout) return;
  std::vector<Candidate> best;
  for (const Candidate& one : search.candidates()) {
    const Layout& layout = one.plan.layout;
    const bool can_divide = one.is_ranked() && one.setup.num_ranks > 1 && layout.stages == 1 &&
                            !layout.disaggregates && !layout.divides_head &&
                            !one.plan.experts_in_memory && !search.IsForComparison(one);
    if (can_divide) best.push_back(one);
  }
  // Allowed ones first, since only they can be chosen.
  std::ranges::stable_sort(best, {}, [](const Candidate& one) {
    return std::pair(!one.is_allowed(), one.figures->score);
  });
  if (best.size() > kMostWithHeads) best.resize(kMostWithHeads);
  const bool has_shared = HasSharedExperts(search.question().spec);
  const bool has_dense = HasDenseLayers(search.question().spec);
  for (const Candidate& whole : best) {
    const Layout& layout = whole.plan.layout;
    for (const Divided& divided : {Divided{.head = true}, Divided{.head = true, .shared = true},
                                   Divided{.dense = true}, Divided{.head = true, .dense = true},
                                   Divided{.head = true, .shared = true, .dense = true}}) {
      if (divided.shared && !(has_shared && layout.expert_ep == 1)) continue;
      if (divided.dense && !(has_dense && layout.attention_tp > 1)) continue;
      Candidate candidate = whole;
      candidate.figures.reset();
      if (!Divides(divided, candidate)) continue;
      Candidate* added = search.Add(std::move(candidate));
      if (added != nullptr) search.CheckMemory(*added);
    }
  }
  MarkChanges(search);
  PriceAll(search);
}

// Experts divided otherwise in decode.
void AddHybridPlans(PlanSearch& search) {
  AddHybrids(search);
  MarkChanges(search);
  PriceAll(search);
}

bool MayChooseWire(const PlanQuestion& question) {
  return question.allowed.wire && !question.constraints.wire;
}

// Wires that round, each in fewer bytes than the one before: `fp8` is `bf16` under another name
// where activations are int8, which is how dispatched rows travel then.
std::vector<plan::Wire> WiresOf(const PlanQuestion& question, const std::string& weights) {
  std::vector<plan::Wire> wires = {plan::Wire::kBf16};
  for (const plan::Wire wire : {plan::Wire::kFp8, plan::Wire::kFp8Both}) {
    const strategy::ElementBytes least = question.bytes_of(weights, wires.back());
    const strategy::ElementBytes bytes = question.bytes_of(weights, wire);
    if (bytes.dispatched < least.dispatched || bytes.returned < least.returned) {
      wires.push_back(wire);
    }
  }
  return wires;
}

void AddWiresOf(PlanSearch& search, const std::vector<Candidate>& exact) {
  for (const Candidate& each : exact) {
    for (const plan::Wire wire : WiresOf(search.question(), each.setup.weights)) {
      Candidate candidate = each;
      candidate.plan.wire = wire;
      candidate.figures.reset();
      search.Add(std::move(candidate));
    }
  }
  MarkChanges(search);
  PriceAll(search);
}

// Rows in fewer bytes, where that is allowed.
void AddWires(PlanSearch& search) {
  if (!MayChooseWire(search.question())) return;
  const Candidate* best = search.Best();
  const double least = best != nullptr ? best->figures->score : kUnlimited;
  std::vector<Candidate> exact;
  for (const Candidate& each : search.candidates()) {
    // Rows of no bytes would not do: PruneByBound says so of the plan itself.
    // Rows of whole layers are never rounded.
    const bool could_win = each.is_ranked() && each.setup.num_ranks > 1 &&
                           each.plan.layout.stages == 1 && LeastScore(each) < least;
    if (could_win) exact.push_back(each);
  }
  AddWiresOf(search, exact);
}

// Attention and experts on different ranks.
void AddDisaggregatedPlans(PlanSearch& search) {
  AddDisaggregated(search);
  MarkChanges(search);
}

// Disaggregated plans whose rows may be in fewer bytes, the best ones.
constexpr size_t kMostTurnsWithWires = 2;

// How these take turns; then their rows in fewer bytes, where that is allowed.
void RefineDisaggregated(PlanSearch& search) {
  RefineTurns(search);
  if (!MayChooseWire(search.question())) return;
  std::vector<Candidate> exact;
  for (const Candidate& each : search.candidates()) {
    if (each.is_ranked() && each.is_allowed() && each.plan.layout.disaggregates) {
      exact.push_back(each);
    }
  }
  std::ranges::stable_sort(exact, {}, [](const Candidate& one) { return one.figures->score; });
  if (exact.size() > kMostTurnsWithWires) exact.resize(kMostTurnsWithWires);
  AddWiresOf(search, exact);
}

// Plans that answer soonest, which are looked for by themselves: what does not keep the limits has
// no figures, so that no pass looked for pipelines of it, by which it would.
constexpr size_t kMostSoonest = 8;

void AddSoonestBy(PlanSearch& search, Objective objective) {
  Workload workload = search.question().workload;
  workload.objective = objective;
  workload.limits = {};
  if (workload.arrival_rate <= 0) workload.batch = 1;
  const Result<PlanAnswer> answer = SearchPlan(WithWorkload(search.question(), workload));
  if (!answer) return;  // then the passes before have said why
  size_t num_added = 0;
  for (const Candidate& one : answer->candidates) {
    if (num_added == kMostSoonest) break;
    if (!one.is_ranked() || !one.is_allowed()) continue;
    Candidate* const added = search.Add({.setup = one.setup, .plan = one.plan});
    if (added == nullptr) continue;
    ++num_added;
    if (search.CheckMemory(*added)) search.Price(*added);
  }
}

void AddSoonest(PlanSearch& search) {
  const Workload& workload = search.question().workload;
  if (workload.objective != Objective::kGoodput || search.Best() != nullptr) return;
  if (workload.limits.ttft > 0) AddSoonestBy(search, Objective::kTtft);
  if (workload.limits.time_per_token > 0) AddSoonestBy(search, Objective::kTimePerToken);
}

constexpr SearchPass kPasses[] = {
    {"setups", "numbers of ranks, threads and formats of weights that costs are known of",
     AddSetups, /*can_be_off=*/false},
    {"ranks", "leaves out numbers of ranks that are no powers of two, where there are many",
     ChooseNumbersOfRanks},
    {"layouts", "how ranks divide heads, sequences and experts", AddLayouts},
    {"shares", "shares of the experts by the rates of ranks that are not alike", AddUnequalShares},
    {"asked", "leaves out what has nothing of what was asked for", RejectUnasked,
     /*can_be_off=*/false},
    {"memory", "rejects what does not fit the memory of a rank", CheckMemory},
    {"paging", "experts, and keys and values, read from a disk where they do not fit a rank",
     AddPaged},
    {"changes", "marks what would change the numbers that are computed", MarkChanges,
     /*can_be_off=*/false},
    {"prices", "simulates prefill and decode of each", PriceLayouts, /*can_be_off=*/false},
    {"hybrid", "other divisions of the experts in decode, by an integer program", AddHybridPlans},
    {"heads",
     "the head, shared experts and dense blocks divided among the ranks of the best layouts",
     DivideHeads},
    {"wires", "rows between ranks in fewer bytes (--allow wire)", AddWires},
    {"disaggregated",
     "attention on some ranks and experts on others, in pipelines that a solver proposes",
     AddDisaggregatedPlans},
    {"turns", "their micro-batches, chunks and order, from what was proposed to the best by price",
     RefineDisaggregated},
    {"step_sizes", "steps of prefill with more tokens, which read the weights less often",
     AddStepSizes},
    {"bound", "spares the search for pipelines what could not win by one", PruneByBound},
    {"pipelines", "the experts' work in chunks of tokens or experts", AddPipelines},
    {"cuts", "chunks of experts that end where expected work and bytes say", AddCuts},
    {"micro_batches",
     "steps in parts, one of which computes while another exchanges or is on the next rank",
     AddMicroBatches},
    {"comm_budget", "multiprocessors that experts leave to exchanges beside them (of GPUs)",
     AddCommBudgets},
    {"whole_decode", "the best of these with steps of generated tokens in one piece",
     AddWholeDecode},
    {"limits", "where nothing that may be chosen keeps the limits: what answers soonest",
     AddSoonest},
};

}  // namespace

std::span<const SearchPass> SearchPasses() { return kPasses; }

}  // namespace convene::planner
