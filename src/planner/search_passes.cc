// The passes of the search, in their order. What they work on is plan_search.h.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "base/units.h"
#include "planner/asked_for.h"
#include "planner/disaggregated_pass.h"
#include "planner/disaggregated_turns.h"
#include "planner/hybrid_pass.h"
#include "planner/pipeline_passes.h"
#include "planner/plan_search.h"
#include "planner/share_pass.h"
#include "planner/spilled_steps.h"
#include "planner/unmet_limits.h"

namespace convene::planner {
namespace {

using strategy::Layout;

plan::Plan UsualPlan(const PlanQuestion& question, int num_ranks) {
  plan::Plan plan{.layout = plan::DefaultLayout(num_ranks)};
  if (num_ranks == 1) return plan;
  plan.wire = question.constraints.wire.value_or(plan::Wire::kF32);
  if (question.constraints.pipeline) plan.pipeline = *question.constraints.pipeline;
  plan.pipeline.micro_batches = question.constraints.micro_batches.value_or(1);
  return plan;
}

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
      for (const int count : threads) search.Add({.setup = {ranks, count, format}, .plan = plan});
      if (!threads.empty()) continue;
      if (question.constraints.num_cores && ranks < question.num_ranks) continue;  // not asked for
      search.Add(
          {.setup = {ranks, question.constraints.num_threads.value_or(0), format}, .plan = plan});
      search.Reject(search.candidates().back(),
                    question.source.WhyUnknown(ranks, question.constraints.num_threads, format));
    }
  }
}

// Many ranks are on hosts with several each, and only whole ones are looked at.
constexpr int kRanksOfAHost = 8;

// Plans of 61 and 62 ranks are no better than those of 56 or 64 that lie beside them but where
// heads and experts go by such numbers, and there are as many of them as of all others together.
void ChooseNumbersOfRanks(PlanSearch& search) {
  const Constraints& constraints = search.question().constraints;
  if (constraints.num_ranks || constraints.layout) return;  // there is one number
  const int all = search.question().num_ranks;
  for (Candidate& candidate : search.candidates()) {
    const int ranks = candidate.setup.num_ranks;
    if (!candidate.rejected_by.empty() || ranks <= kFewRanks || ranks % kRanksOfAHost == 0 ||
        ranks == all) {
      continue;
    }
    search.Reject(candidate,
                  fmt::format("of more than {} ranks, only multiples of {} and all {} are searched "
                              "(--without ranks: every number; --ranks {}: up to this one)",
                              kFewRanks, kRanksOfAHost, all, ranks));
  }
}

// --- Which part of the work each rank could have.

std::vector<Layout> LayoutsOf(int num_ranks) {
  std::vector<Layout> layouts = {plan::DefaultLayout(num_ranks)};
  for (int attention = 1; attention <= num_ranks; ++attention) {
    if (num_ranks % attention != 0) continue;
    for (int slices = 1; slices <= num_ranks; ++slices) {
      if (num_ranks % slices != 0) continue;
      const Layout layout{.attention_tp = attention,
                          .attention_dp = num_ranks / attention,
                          .expert_ep = num_ranks / slices,
                          .expert_tp = slices};
      if (layout != layouts.front()) layouts.push_back(layout);
    }
  }
  return layouts;
}

// Of a plan that divides the experts in decode as in prefill, where another division was asked for.
std::string WhyNotInDecode(plan::Plan plan, const std::string& experts) {
  const Status parsed = plan::ParseDecodeExperts(experts, &plan);
  if (!parsed) return parsed.error().message;
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
  if (!parsed || !plan.changes_layout()) {
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
    for (const Layout& layout : wanted ? std::vector{*wanted} : LayoutsOf(usual.setup.num_ranks)) {
      Candidate candidate = usual;
      candidate.plan.layout = layout;
      if (layout.disaggregates) continue;  // AddDisaggregated does
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

// The same with keys and values of the batch on the disk, too, which leaves room for more experts
// and more sequences; prices say whether that is better than where they stay in memory.
void AddSpilled(PlanSearch& search, const Candidate& whole) {
  const PlanQuestion& question = search.question();
  // Who comes one by one, and how many of them, is not known ahead.
  const bool is_stream = question.workload.arrival_rate > 0;
  if (!question.spilled_that_fit || is_stream || whole.setup.num_ranks > 1) return;
  const int batch = question.workload.batch;
  for (const double share : kKvShares) {
    const Result<plan::Plan> plan =
        question.spilled_that_fit(whole.setup, whole.plan, batch, whole.memory_limit, share);
    // Then experts do not fit beside keys and values in memory either, which was said.
    if (!plan) continue;
    Candidate* const added =
        search.Add({.setup = whole.setup, .plan = *plan, .memory_limit = whole.memory_limit});
    if (added != nullptr) search.CheckMemory(*added);
  }
}

// Ranks whose weights do not fit, with as many experts of each in memory as there is room for.
void AddPaged(PlanSearch& search) {
  const PlanQuestion& question = search.question();
  if (!question.experts_that_fit) return;
  const size_t count = search.candidates().size();
  for (size_t i = 0; i < count; ++i) {
    const Candidate whole = search.candidates()[i];
    if (whole.rejected_by != "memory" || whole.memory_limit == 0 || !plan::CanPage(whole.plan)) {
      continue;
    }
    const int batch = question.workload.batch;
    const Result<int> experts =
        question.experts_that_fit(whole.setup, whole.plan, batch, whole.memory_limit);
    Candidate paged{.setup = whole.setup, .plan = whole.plan, .memory_limit = whole.memory_limit};
    paged.plan.experts_in_memory = experts ? *experts : 1;
    Candidate* const added = search.Add(std::move(paged));
    if (added != nullptr && !experts) search.Reject(*added, experts.error().message);
    if (added != nullptr && experts) {
      if (const auto memory = question.memory_of(added->setup, added->plan, batch)) {
        added->memory = *memory;
      }
    }
    AddSpilled(search, whole);
  }
}

// Of so many ranks, in the divisions that were asked for, if any were.
std::vector<plan::Plan> AskedPlans(const PlanQuestion& question, int num_ranks) {
  const Constraints& constraints = question.constraints;
  std::vector<plan::Plan> plans;
  for (const Layout& layout :
       constraints.layout ? std::vector{*constraints.layout} : LayoutsOf(num_ranks)) {
    plan::Plan plan = UsualPlan(question, num_ranks);
    plan.layout = layout;
    if (layout.num_ranks() != num_ranks) continue;
    if (constraints.decode_experts) {
      const Status parsed = plan::ParseDecodeExperts(*constraints.decode_experts, &plan);
      if (!parsed || !plan.changes_layout()) continue;
    }
    plans.push_back(std::move(plan));
  }
  return plans;
}

// Whether the weights fit in the format, whatever is known of its costs.
bool Fits(const PlanQuestion& question, const std::string& format) {
  for (int ranks = 1; ranks <= question.num_ranks; ++ranks) {
    if (!IsWanted(question.constraints.num_ranks, ranks)) continue;
    for (const plan::Plan& plan : AskedPlans(question, ranks)) {
      const auto memory =
          question.memory_of({ranks, question.constraints.num_threads.value_or(1), format}, plan,
                             question.workload.batch);
      if (memory && memory->total() <= question.memory_per_rank(ranks)) return true;
    }
  }
  return false;
}

// What would change the numbers that are computed, and so must be allowed.
void MarkChanges(PlanSearch& search) {
  const PlanQuestion& question = search.question();
  std::string first_format = question.formats.front();
  for (const std::string& format : question.formats) {
    first_format = format;
    if (question.formats.size() == 1 || Fits(question, format)) break;
  }
  const auto given = [&](bool allowed, bool is_constraint) { return allowed || is_constraint; };
  for (Candidate& candidate : search.candidates()) {
    candidate.needs.clear();
    const plan::Plan& plan = candidate.plan;
    const bool several = plan.layout.num_ranks() > 1;
    plan::Plan exact = plan;
    exact.wire = plan::Wire::kF32;
    exact.phase_change.transition = plan::Transition::kReshard;
    if (several && !KeepsLogits(question.spec, exact, question.one_host) &&
        !given(question.allowed.layout, question.constraints.layout.has_value() ||
                                            question.constraints.decode_experts.has_value())) {
      candidate.needs.emplace_back("layout");
    }
    const bool rounds =
        plan::Rounds(plan.wire) || (plan.wire == plan::Wire::kAuto && !question.one_host);
    if (several && rounds && !given(question.allowed.wire, question.constraints.wire.has_value())) {
      candidate.needs.emplace_back("wire");
    }
    if (plan.loads_experts() && !question.allowed.transition) {
      candidate.needs.emplace_back("transition");
    }
    if (candidate.setup.weights != first_format && !question.allowed.weights) {
      candidate.needs.emplace_back("weights");
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

// Experts divided otherwise in decode.
void AddHybridPlans(PlanSearch& search) {
  AddHybrids(search);
  MarkChanges(search);
  PriceAll(search);
}

bool MayChooseWire(const PlanQuestion& question) {
  return question.allowed.wire && !question.constraints.wire;
}

void AddWiresOf(PlanSearch& search, const std::vector<Candidate>& exact) {
  for (const Candidate& each : exact) {
    for (const plan::Wire wire : {plan::Wire::kBf16, plan::Wire::kFp8, plan::Wire::kFp8Both}) {
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
    const bool could_win = each.is_ranked() && each.setup.num_ranks > 1 && LeastScore(each) < least;
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

constexpr SearchPass kPasses[] = {
    {"setups", "numbers of ranks, threads and formats of weights that costs are known of",
     AddSetups, /*can_be_off=*/false},
    {"ranks", "leaves out numbers of ranks that fill no hosts, where there are many",
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
    {"wires", "rows between ranks in fewer bytes (--allow wire)", AddWires},
    {"disaggregated",
     "attention on some ranks and experts on others, in pipelines that a solver proposes",
     AddDisaggregatedPlans},
    {"turns", "their micro-batches, chunks and order, from what was proposed to the best by price",
     RefineDisaggregated},
    {"bound", "spares the search for pipelines what could not win by one", PruneByBound},
    {"pipelines", "the experts' work in chunks of tokens or experts", AddPipelines},
    {"cuts", "chunks of experts that end where expected work and bytes say", AddCuts},
    {"micro_batches", "steps in parts, one of which computes while another exchanges",
     AddMicroBatches},
};

// --- When nothing is left.

// Never less than what is needed, whatever the rounding to three digits.
std::string Enough(uint64_t size_bytes) { return FormatBytes(size_bytes + size_bytes / 200); }

constexpr int kMostRanksToTell = 256;

// The least that any rank takes in a format, over what may be of so many ranks.
struct LeastMemory {
  std::optional<uint64_t> allowed = {};  // by plans that may be chosen
  std::optional<uint64_t> any = {};      // by those, too, that --allow layout would admit
};
// What has to be said behind a remedy that suffices by the second alone.
constexpr const char* kAndAllow = " and --allow layout";

LeastMemory LeastMemoryOf(const PlanQuestion& question, int num_ranks, const std::string& format,
                          int num_threads) {
  LeastMemory least;
  const bool is_given = question.constraints.layout || question.constraints.decode_experts;
  for (const plan::Plan& plan : AskedPlans(question, num_ranks)) {
    const auto memory =
        question.memory_of({num_ranks, num_threads, format}, plan, question.workload.batch);
    if (!memory) continue;
    const uint64_t total = memory->total();
    least.any = std::min(least.any.value_or(total), total);
    plan::Plan exact = plan;
    exact.wire = plan::Wire::kF32;
    const bool is_allowed = question.allowed.layout || is_given || num_ranks == 1 ||
                            KeepsLogits(question.spec, exact, question.one_host);
    if (is_allowed) least.allowed = std::min(least.allowed.value_or(total), total);
  }
  return least;
}

// `remedy`, with what it needs beside it; nothing where it does not suffice.
std::optional<std::string> RemedyBy(const LeastMemory& least, uint64_t available,
                                    const std::string& remedy) {
  if (least.allowed && *least.allowed <= available) return remedy;
  if (least.any && *least.any <= available) return remedy + kAndAllow;
  return std::nullopt;
}

// `paged`: one with experts on a disk, if any was looked at.
Error NotEnoughMemory(const PlanQuestion& question, const Candidate& closest,
                      const Candidate* paged) {
  const std::string& format = question.formats.back();
  const int threads = closest.setup.num_threads;
  std::string message = fmt::format("the model fits nowhere: {} needs {} per rank, and each has {}",
                                    Describe(closest), Enough(closest.memory.total()),
                                    FormatBytes(closest.memory_limit));
  std::vector<std::string> remedies;
  const LeastMemory here = LeastMemoryOf(question, question.num_ranks, format, threads);
  if (here.any) {
    remedies.push_back(fmt::format("{} of memory for each of {} (--memory-per-rank){}",
                                   Enough(here.allowed.value_or(*here.any)),
                                   FormatCount(static_cast<uint64_t>(question.num_ranks), "rank"),
                                   here.allowed ? "" : kAndAllow));
  }
  for (int ranks = question.num_ranks + 1; ranks <= kMostRanksToTell; ++ranks) {
    // As ChooseNumbersOfRanks has it.
    if (ranks > kFewRanks && ranks % kRanksOfAHost != 0) continue;
    const auto remedy =
        RemedyBy(LeastMemoryOf(question, ranks, format, threads), question.memory_per_rank(ranks),
                 FormatCount(static_cast<uint64_t>(ranks), "rank"));
    if (!remedy) continue;
    remedies.push_back(*remedy);
    break;
  }
  for (const char* fewer : {"int8", "int4"}) {
    const auto& tried = question.formats;
    if (std::find(tried.begin(), tried.end(), fewer) != tried.end()) continue;
    const auto remedy =
        RemedyBy(LeastMemoryOf(question, question.num_ranks, fewer, threads),
                 question.memory_per_rank(question.num_ranks), fmt::format("--weights {}", fewer));
    if (!remedy) continue;
    remedies.push_back(*remedy);
    break;
  }
  for (size_t i = 0; i < remedies.size(); ++i) {
    message += (i == 0                    ? "; it would with "
                : i + 1 < remedies.size() ? ", "
                                          : " or ") +
               remedies[i];
  }
  if (remedies.empty()) {
    message +=
        fmt::format("; neither more ranks, up to {}, nor int4 weights would do", kMostRanksToTell);
  }
  if (paged != nullptr) message += "; with experts on the disk: " + paged->reason;
  return ResourceExhausted(message);
}

}  // namespace

std::span<const SearchPass> SearchPasses() { return kPasses; }

Error WhyNothing(PlanSearch& search) {
  const PlanQuestion& question = search.question();
  const Candidate* closest = nullptr;  // of those that do not fit
  const Candidate* unknown = nullptr;  // of those of which nothing is known
  const Candidate* other = nullptr;    // rejected for another reason
  const Candidate* changes = nullptr;  // would be one, were it allowed
  const Candidate* paged = nullptr;    // with experts on a disk
  const Candidate* fits = nullptr;     // has the memory, and is rejected for another reason
  for (const Candidate& candidate : search.candidates()) {
    const uint64_t needed = candidate.memory.total();
    if (candidate.plan.experts_in_memory && !candidate.is_ranked()) paged = &candidate;
    if (candidate.is_ranked()) {
      if (changes == nullptr || candidate.figures->score < changes->figures->score) {
        changes = &candidate;
      }
    } else if (candidate.rejected_by == "memory" && needed > candidate.memory_limit) {
      const auto excess = [](const Candidate& one) {
        return static_cast<double>(one.memory.total()) / static_cast<double>(one.memory_limit + 1);
      };
      if (closest == nullptr || excess(candidate) < excess(*closest)) closest = &candidate;
    } else if (candidate.plan.decode && !question.constraints.decode_experts) {
      // It stands on plans of one division, whose reasons say more.
    } else if (candidate.rejected_by == "setups") {
      // The most precise format and the most ranks are what is likely meant.
      const bool is_first_format =
          unknown == nullptr || candidate.setup.weights == unknown->setup.weights;
      if (is_first_format) unknown = &candidate;
    } else {
      other = &candidate;
      // Whoever came to a price had memory for the batch that was asked for.
      const bool has_memory =
          candidate.memory_limit > 0 && !candidate.plan.experts_in_memory &&
          (candidate.rejected_by == "prices" || needed <= candidate.memory_limit);
      if (has_memory && (fits == nullptr || !fits->is_allowed())) fits = &candidate;
    }
  }
  if (changes != nullptr) {
    std::string message = fmt::format(
        "the best plan there is, {}, would change what is computed, "
        "and is chosen only with --allow {}",
        Describe(*changes), fmt::join(changes->needs, ","));
    if (other != nullptr && other->needs.empty()) {
      message +=
          fmt::format("; of those that compute the same, {}: {}", Describe(*other), other->reason);
    } else if (unknown != nullptr) {
      message += fmt::format("; otherwise {}", unknown->reason);
    }
    return {message};
  }
  if (auto unmet = WhyLimitsAreUnmet(search)) return *std::move(unmet);
  if (auto too_many = WhyTooManyArrive(search)) return *std::move(too_many);
  if (closest != nullptr && fits == nullptr) return NotEnoughMemory(question, *closest, paged);
  if (fits != nullptr) other = fits;
  if (other != nullptr) {
    return {fmt::format("no plan is left; {}: {}", Describe(*other), other->reason)};
  }
  if (unknown != nullptr) return NotFound(unknown->reason);
  return {"no plan is left: options ask for what does not go together"};
}

bool CutsNothing(const model::ModelSpec& spec, const Layout& layout) {
  if (layout.attention_tp > 1 || layout.expert_tp > 1) return false;
  const strategy::Roles roles = layout;
  for (const model::LayerSpec& layer : spec.layers) {
    if (!layer.moe) continue;
    for (int share = 0; share < roles.expert_split().num_shares(); ++share) {
      const strategy::Part part = roles.expert_split().experts(share, layer.moe->num_experts);
      const bool is_branch =
          part.size > 0 && (part.size & (part.size - 1)) == 0 && part.first % part.size == 0;
      const bool is_whole = part.size == layer.moe->num_experts;
      if (!is_branch && !is_whole) return false;
    }
  }
  return true;
}

}  // namespace convene::planner
