#include "planner/pipeline_passes.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <bit>
#include <functional>
#include <span>
#include <utility>
#include <vector>

#include "base/units.h"
#include "planner/closed_form.h"
#include "planner/expert_cuts.h"

namespace convene::planner {
namespace {

using strategy::ChunkCut;
using strategy::Pipeline;

// Candidates whose pipelines are searched: those that could gain most by them.
constexpr size_t kMostRefined = 8;
// Numbers of chunks grow until so many in a row are no better.
constexpr int kMostWorse = 2;
constexpr int kMostSearchedChunks = 64;
// Candidates that are tried with multiprocessors left to their exchanges.
constexpr size_t kMostBudgeted = 4;
// Candidates whose chunks are cut where work and bytes say.
constexpr size_t kMostCut = 2;

bool HasExperts(const model::ModelSpec& spec) {
  return std::any_of(spec.layers.begin(), spec.layers.end(),
                     [](const model::LayerSpec& layer) { return layer.moe.has_value(); });
}

bool CanOverlap(const PlanSearch& search, const Candidate& candidate) {
  // Experts that are read from a disk have the chunks in which they are read, and ranks with
  // attention or experts alone have pipelines of their own kind.
  return candidate.is_ranked() && candidate.setup.num_ranks > 1 &&
         !candidate.plan.experts_in_memory && !candidate.plan.layout.disaggregates &&
         HasExperts(search.question().spec);
}

std::vector<Candidate> ToRefine(PlanSearch& search) {
  const Candidate* best = search.Best();
  std::vector<Candidate> refined;
  for (const Candidate& candidate : search.candidates()) {
    if (!CanOverlap(search, candidate) || !candidate.not_refined.empty()) continue;
    // Since PruneByBound another plan may have become better than this one can.
    if (best == nullptr || &candidate == best || LeastScore(candidate) < best->figures->score) {
      refined.push_back(candidate);
    }
  }
  return refined;
}

// Adds `base` with more and more of something, until that is no better any more.
void AddWhileBetter(PlanSearch& search, const Candidate& base, std::span<const int> counts,
                    const std::function<void(int, plan::Plan&)>& set) {
  double best = base.figures->score;
  int worse = 0;
  for (const int count : counts) {
    Candidate candidate = base;
    candidate.figures.reset();
    set(count, candidate.plan);
    Candidate* const added = search.Add(std::move(candidate));
    if (added == nullptr) continue;
    search.Price(*added);
    const bool is_better = added->figures && added->figures->score < best;
    if (is_better) best = added->figures->score;
    worse = is_better ? 0 : worse + 1;
    if (worse == kMostWorse) break;
  }
}

// Of a step of prefill, of which chunks are cut: new tokens of each group of ranks.
int TokensPerGroup(const PlanQuestion& question, const plan::Plan& plan) {
  const double all = question.workload.batch * question.workload.mean_prompt_tokens();
  const int num_groups = strategy::Roles(plan.layout).num_groups();
  const int most = plan.step_tokens_for(question.workload.batch, question.step_tokens);
  return static_cast<int>(std::clamp(all / num_groups, 1.0, static_cast<double>(most)));
}

// Tokens of the largest step of the workload, of all groups of ranks. Inputs of an encoder are cut
// into chunks alone.
int64_t MostTokensOfAStep(const PlanQuestion& question, const Candidate& one, bool with_inputs) {
  const Workload& workload = question.workload;
  const int batch = std::max(workload.batch, one.figures->batch);
  int64_t most = workload.mean_gen_tokens() > 1 ? batch : 1;
  for (const TypicalStep& step : PrefillStepsOf(
           question.spec, TypicalSequences(workload, workload.arrival_rate > 0 ? 1 : batch),
           one.plan.layout, one.plan.step_tokens_for(batch, question.step_tokens))) {
    most = std::max({most, NumTokens(step.groups), with_inputs ? NumTokens(step.inputs) : 0});
  }
  return most;
}

// Of `counts` those of parts that the tokens of some step are enough for: others leave steps as
// they are, or add parts without rows.
std::vector<int> PossibleParts(const PlanQuestion& question, const Candidate& one,
                               std::vector<int> counts, bool with_inputs) {
  const int num_groups = strategy::Roles(one.plan.layout).num_groups();
  const int64_t most = MostTokensOfAStep(question, one, with_inputs);
  std::erase_if(counts, [&](int count) { return int64_t{count} * num_groups > most; });
  return counts;
}

// Cuts are the same in all layers. Empty: all experts are alike.
cost::ExpertShares MeanOf(const std::vector<cost::ExpertShares>& of_layers) {
  cost::ExpertShares mean;
  double count = 0;
  for (const cost::ExpertShares& shares : of_layers) {
    if (shares.empty()) continue;
    if (mean.empty()) mean.resize(shares.size());
    if (shares.size() != mean.size()) continue;
    for (size_t i = 0; i < mean.size(); ++i) mean[i] += shares[i];
    ++count;
  }
  for (double& share : mean) share /= count;
  return mean;
}

// The fastest with chunks of experts, of those that cuts could still make the best.
std::vector<Candidate> ToCut(PlanSearch& search) {
  const Candidate* best = search.Best();
  std::vector<Candidate> found;
  for (const Candidate& one : search.candidates()) {
    const Pipeline& pipeline = one.plan.pipeline;
    const bool is_cut = one.is_ranked() && one.is_allowed() && pipeline.chunks > 1 &&
                        pipeline.cut == ChunkCut::kExperts && pipeline.cuts.empty() &&
                        !one.plan.experts_in_memory;
    if (is_cut && one.figures->score <= kMostGainOfCuts * best->figures->score) {
      found.push_back(one);
    }
  }
  std::ranges::stable_sort(found, {}, [](const Candidate& one) { return one.figures->score; });
  if (found.size() > kMostCut) found.resize(kMostCut);
  return found;
}

// What EPS-MoE's closed form says of the best layout that has chunks, beside what simulated steps
// say.
void RemarkOnClosedForm(PlanSearch& search, const std::vector<Candidate>& refined) {
  const PlanQuestion& question = search.question();
  const Candidate* plain = nullptr;
  for (const Candidate& one : refined) {
    const bool has_chunks = one.is_allowed() && one.plan.layout.stages == 1 &&
                            !one.plan.layout.divides_shared && one.plan.pipeline.chunks == 1 &&
                            one.plan.pipeline.micro_batches == 1 && !one.plan.decode;
    if (!has_chunks) continue;
    if (plain == nullptr || one.figures->score < plain->figures->score) plain = &one;
  }
  if (plain == nullptr) return;
  const Candidate* best = plain;
  for (const Candidate& one : search.candidates()) {
    Candidate same = one;
    same.plan.pipeline = plain->plan.pipeline;
    const bool is_of_it = one.is_ranked() && one.plan.pipeline.micro_batches == 1 &&
                          one.setup == plain->setup && same.plan == plain->plan;
    if (is_of_it && one.figures->score < best->figures->score) best = &one;
  }
  const strategy::Roles roles = plain->plan.layout;
  const ClosedFormQuestion asked{
      .spec = question.spec,
      .roles = roles,
      .bytes = question.bytes_of(plain->setup.weights, plain->plan.wire),
      .tokens_per_group = TokensPerGroup(question, plain->plan),
      .shares = MeanOf(SharesOf(question.workload.routing, question.spec))};
  const ChunkCut cut = best->plan.pipeline.cut;
  const Result<ClosedForm> form = FitClosedForm(asked, search.PricerOf(*plain), cut);
  if (!form) return;  // then no plan has a price either
  search.Remark(fmt::format(
      "of {}: a layer's experts take {:.3g} ms to compute and {:.3g} ms to exchange, and each "
      "chunk "
      "of {} {:.3g} ms more, so that the closed form of EPS-MoE wants {}; of simulated steps {} "
      "fastest",
      Describe(*plain), 1e3 * form->computation, 1e3 * form->communication,
      cut == ChunkCut::kTokens ? "tokens" : "experts", 1e3 * form->per_chunk,
      FormatCount(static_cast<uint64_t>(form->chunks), "chunk"),
      best->plan.pipeline.chunks == 1
          ? "those without chunks are"
          : fmt::format("those with {} are", best->plan.pipeline.chunks)));
}

}  // namespace

double LeastScore(const Candidate& candidate) {
  // Whoever is faster waits less.
  double least = candidate.figures->score - candidate.figures->waiting_seconds;
  // Of ranks with some layers each all compute at once, at best.
  if (candidate.plan.layout.stages > 1) return least / candidate.plan.layout.stages;
  for (size_t kind = 0; kind < candidate.figures->path.size(); ++kind) {
    if (IsCollective(static_cast<schedule::TaskKind>(kind))) least -= candidate.figures->path[kind];
  }
  return least;
}

void PruneByBound(PlanSearch& search) {
  const Candidate* best = search.Best();
  if (best == nullptr) return;
  const double least = best->figures->score;
  std::vector<Candidate*> open;
  for (Candidate& candidate : search.candidates()) {
    if (!CanOverlap(search, candidate)) continue;
    if (LeastScore(candidate) < least) {
      open.push_back(&candidate);
      continue;
    }
    candidate.not_refined =
        fmt::format("even {} it would be {:.1f} % slower than {}",
                    candidate.plan.layout.stages > 1 ? "if all its ranks computed all the time"
                                                     : "with all exchanges hidden",
                    100 * (LeastScore(candidate) / least - 1), Describe(*best));
  }
  // Half of the places are for those that are fastest without, half for those that could become so:
  // neither says what a pipeline will take. Allowed ones first, since only they can be chosen.
  const auto sort_from = [&open](size_t first, const auto& figure) {
    std::stable_sort(open.begin() + std::min(std::ssize(open), static_cast<ptrdiff_t>(first)),
                     open.end(), [&](const Candidate* a, const Candidate* b) {
                       if (a->is_allowed() != b->is_allowed()) return a->is_allowed();
                       return figure(*a) < figure(*b);
                     });
  };
  sort_from(0, [](const Candidate& each) { return each.figures->score; });
  sort_from(kMostRefined / 2, LeastScore);
  for (size_t i = kMostRefined; i < open.size(); ++i) {
    open[i]->not_refined =
        fmt::format("{} others are faster without one or could gain more by it", kMostRefined);
  }
}

void AddPipelines(PlanSearch& search) {
  if (search.question().constraints.pipeline) return;
  const std::vector<Candidate> refined = ToRefine(search);
  for (const Candidate& base : refined) {
    // Nothing of a layer is exchanged, or slices of shared experts are not cut into chunks.
    if (base.plan.layout.stages > 1 || base.plan.layout.divides_shared) continue;
    const strategy::Roles roles = base.plan.layout;
    int fewest = kMostSearchedChunks;
    for (const model::LayerSpec& layer : search.question().spec.layers) {
      if (!layer.moe) continue;
      fewest = std::min(fewest, roles.expert_split().FewestExperts(layer.moe->num_experts));
    }
    for (const ChunkCut cut : {ChunkCut::kTokens, ChunkCut::kExperts}) {
      std::vector<int> counts;
      const int most = cut == ChunkCut::kExperts ? fewest : kMostSearchedChunks;
      for (int chunks = 2; chunks <= most; chunks *= 2) counts.push_back(chunks);
      if (cut == ChunkCut::kTokens) {
        counts = PossibleParts(search.question(), base, std::move(counts), /*with_inputs=*/true);
      }
      AddWhileBetter(search, base, counts, [cut](int chunks, plan::Plan& plan) {
        plan.pipeline.chunks = chunks;
        plan.pipeline.cut = cut;
      });
    }
  }
  RemarkOnClosedForm(search, refined);
}

void AddCuts(PlanSearch& search) {
  const PlanQuestion& question = search.question();
  const std::vector<cost::ExpertShares> shares = SharesOf(question.workload.routing, question.spec);
  for (const Candidate& base : ToCut(search)) {
    const strategy::Roles roles = base.plan.layout;
    const cost::ExpertShares mean = MeanOf(shares);
    const ExpertStep step = {.spec = question.spec,
                             .roles = roles,
                             .tokens_per_group = TokensPerGroup(question, base.plan),
                             .shares = mean};
    for (std::vector<double>& cuts : CutsToTry(step, base.plan.pipeline)) {
      Candidate candidate = base;
      candidate.figures.reset();
      candidate.plan.pipeline.cuts = std::move(cuts);
      Candidate* const added = search.Add(std::move(candidate));
      if (added != nullptr) search.Price(*added);
    }
  }
}

void AddMicroBatches(PlanSearch& search) {
  const Constraints& constraints = search.question().constraints;
  if (constraints.micro_batches || (constraints.pipeline && !constraints.pipeline->overlap)) return;
  std::vector<Candidate> bases;
  for (const Candidate& base : ToRefine(search)) {
    if (base.plan.pipeline.chunks == 1) {
      bases.push_back(base);
      continue;
    }
    const auto same = std::find_if(bases.begin(), bases.end(), [&](const Candidate& other) {
      return other.plan.pipeline.chunks > 1 && other.setup == base.setup &&
             other.plan.layout == base.plan.layout && other.plan.wire == base.plan.wire &&
             other.plan.step_tokens == base.plan.step_tokens;
    });
    if (same == bases.end()) {
      bases.push_back(base);
    } else if (base.figures->score < same->figures->score) {
      *same = base;
    }
  }
  constexpr std::array kCounts = {2, 3, 4, 8};
  for (const Candidate& base : bases) {
    std::vector<int> counts(kCounts.begin(), kCounts.end());
    // Ranks with some layers each are all busy with as many as there are of them, and more; where
    // there are fewer tokens than that, steps are not cut.
    const int stages = base.plan.layout.stages;
    if (stages > 1) {
      counts.clear();
      for (int count = 2; count <= strategy::kMostMicroBatches; count *= 2) {
        if (count / 2 < stages && stages < count) counts.push_back(stages);
        counts.push_back(count);
      }
    }
    counts = PossibleParts(search.question(), base, std::move(counts), /*with_inputs=*/false);
    AddWhileBetter(search, base, counts,
                   [](int count, plan::Plan& plan) { plan.pipeline.micro_batches = count; });
  }
}

void AddCommBudgets(PlanSearch& search) {
  const std::vector<int> budgets = search.question().source.CommBudgets();
  const Candidate* const best = search.Best();
  if (budgets.empty() || best == nullptr) return;
  std::vector<Candidate> bases;
  for (const Candidate& one : search.candidates()) {
    const Pipeline& pipeline = one.plan.pipeline;
    const bool has_exchanges_beside = one.is_ranked() && one.setup.num_ranks > 1 &&
                                      one.plan.layout.stages == 1 && pipeline.overlap &&
                                      (pipeline.chunks > 1 || pipeline.micro_batches > 1);
    if (has_exchanges_beside && !search.IsForComparison(one)) bases.push_back(one);
  }
  std::ranges::stable_sort(bases, {}, [](const Candidate& one) {
    return std::pair(!one.is_allowed(), one.figures->score);
  });
  if (bases.size() > kMostBudgeted) bases.resize(kMostBudgeted);
  for (const Candidate& base : bases) {
    AddWhileBetter(search, base, budgets,
                   [](int budget, plan::Plan& plan) { plan.comm_budget = budget; });
  }
}

bool MayLeaveDecodeWhole(const plan::Plan& plan) {
  const bool is_cut = plan.pipeline.chunks > 1 || plan.pipeline.micro_batches > 1;
  return is_cut && !plan.layout.disaggregates && !plan.experts_in_memory;
}

int WholeDecodeFrom(int batch) {
  return static_cast<int>(std::bit_ceil(static_cast<unsigned>(batch) + 1));
}

void AddWholeDecode(PlanSearch& search) {
  const PlanQuestion& question = search.question();
  const Workload& workload = question.workload;
  const Candidate* const best = search.Best();
  if (best == nullptr || !(workload.mean_gen_tokens() > 1)) return;
  const auto is_cut = [](const Candidate& one) {
    return one.plan.pipeline.chunks > 1 || one.plan.pipeline.micro_batches > 1;
  };
  const auto with = [](plan::Plan plan, const Pipeline& pipeline) {
    plan.pipeline = pipeline;
    return plan;
  };
  // What it could be: its own prompts, and the steps of decode of the same plan without parts.
  struct Open {
    Candidate candidate;
    double least = 0;
  };
  std::vector<Open> open;
  for (const Candidate& one : search.candidates()) {
    const bool can_gain =
        one.is_ranked() && one.setup.num_ranks > 1 && MayLeaveDecodeWhole(one.plan);
    if (!can_gain) continue;
    for (const Candidate& whole : search.candidates()) {
      const bool is_same = whole.is_ranked() && !is_cut(whole) && whole.setup == one.setup &&
                           whole.plan == with(one.plan, whole.plan.pipeline);
      if (!is_same || whole.figures->time_per_token >= one.figures->time_per_token) continue;
      const auto seconds = [&](const PlanFigures& decode) {
        return one.figures->ttft + (workload.mean_gen_tokens() - 1) * decode.time_per_token;
      };
      const double share = seconds(*whole.figures) / seconds(*one.figures);
      open.push_back({one, one.figures->score * share});
      break;
    }
  }
  std::erase_if(open, [&](const Open& one) { return one.least >= best->figures->score; });
  std::ranges::stable_sort(
      open, {}, [](const Open& one) { return std::pair(!one.candidate.is_allowed(), one.least); });
  if (open.size() > kMostRefined) open.resize(kMostRefined);
  for (Open& one : open) {
    one.candidate.plan.cut_from_tokens = WholeDecodeFrom(one.candidate.figures->batch);
    one.candidate.figures.reset();
    if (!plan::CheckLayout(one.candidate.plan)) continue;
    Candidate* const added = search.Add(std::move(one.candidate));
    if (added != nullptr) search.Price(*added);
  }
}

}  // namespace convene::planner
