#include "planner/disaggregated_pass.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "planner/disaggregated_layouts.h"
#include "planner/disaggregated_lines.h"
#include "planner/disaggregated_solver.h"
#include "planner/disaggregated_turns.h"
#include "planner/layer_shapes.h"
#include "planner/step_turns.h"

namespace convene::planner {
namespace {

using strategy::Layout;
using strategy::Pipeline;

// Layouts whose pipelines are priced, of each setup.
constexpr size_t kMostPriced = 6;
// Proposals for fixed numbers, of each layout.
constexpr size_t kMostProposals = 2;

// The sequences of the group that has most of them.
const std::vector<strategy::SequenceRows>& Busiest(const StepSequences& groups) {
  const auto rows_of = [](const std::vector<strategy::SequenceRows>& group) {
    return NumTokens({group});
  };
  return *std::max_element(groups.begin(), groups.end(),
                           [&](const auto& a, const auto& b) { return rows_of(a) < rows_of(b); });
}

// A layout with what the solver says of it.
struct Solved {
  Layout layout;
  std::vector<plan::LaneLines> lines = {};
  double seconds = 0;                    // of a batch, by lines
  std::vector<Pipeline> proposals = {};  // with fixed numbers, the most likely first
  Pipeline most = {};                    // of any step
};

class Solver {
 public:
  Solver(PlanSearch& search, const Candidate& base, const StepPricer& pricer)
      : search_(search), base_(base), pricer_(pricer), wanted_(WantedTurnsOf(search)) {}

  Result<Solved> Solve(const Layout& layout) {
    const PlanQuestion& question = search_.question();
    const strategy::Roles roles =
        strategy::Roles(layout).ExpandingFrom(question.expand_from_tokens);
    const TypicalSteps steps = TypicalStepsOf(question, roles);
    Solved solved{.layout = layout};
    // Steps of few rows have lines of their own, since few rows visit few experts.
    std::vector<const StepSequences*> sizes = {&steps.decode, &steps.prefill};
    if (steps.num_decode <= 0) sizes.erase(sizes.begin());
    std::ranges::sort(sizes, {}, [](const StepSequences* step) { return LoadOf(*step).rows; });
    for (const StepSequences* step : sizes) {
      const Result<FittedLines> fitted =
          FitLinesByKeys({.spec = question.spec,
                          .roles = roles,
                          .bytes = question.bytes_of(base_.setup.weights, base_.plan.wire),
                          .shares = SharesOf(question.workload.routing, question.spec),
                          .sequences = Busiest(*step)},
                         pricer_);
      if (!fitted) return fitted.error();
      const bool is_larger =
          solved.lines.empty() || fitted->lines.most_rows > solved.lines.back().most_rows;
      if (is_larger) solved.lines.push_back(fitted->lines);
    }
    AddSteps(steps, solved);
    return solved;
  }

 private:
  void AddSteps(const TypicalSteps& steps, Solved& solved) {
    const plan::LaneLines& prefill_lines = LinesOf(solved.lines, LoadOf(steps.prefill).rows);
    const std::vector<DisaggregatedChoice> of_prefill =
        Propose(prefill_lines, LoadOf(steps.prefill));
    solved.seconds = steps.num_prefill * of_prefill.front().seconds;
    Widen(of_prefill.front().pipeline, solved.most);
    if (steps.num_decode > 0) {
      const std::vector<DisaggregatedChoice> of_decode =
          Propose(LinesOf(solved.lines, LoadOf(steps.decode).rows), LoadOf(steps.decode));
      solved.seconds += steps.num_decode * of_decode.front().seconds;
      Widen(of_decode.front().pipeline, solved.most);
      AddProposals(of_decode, 1, solved.proposals);
    }
    AddProposals(of_prefill, kMostProposals, solved.proposals);
    AddBaselines(prefill_lines, LoadOf(steps.prefill), solved.proposals);
  }

  DisaggregatedQuestion Ask(const plan::LaneLines& lines, const strategy::StepLoad& load) const {
    const double keys_per_row = static_cast<double>(load.keys) / static_cast<double>(load.rows);
    return {.lines = WithKeys(lines, keys_per_row),
            .most_micro_batches = kMostSolvedMicroBatches,
            .most_chunks = kMostSolvedChunks,
            .micro_batches = wanted_.micro_batches,
            .chunks = wanted_.chunks};
  }

  std::vector<DisaggregatedChoice> Propose(const plan::LaneLines& lines,
                                           const strategy::StepLoad& load) const {
    return ProposeStep(Ask(lines, load), static_cast<double>(load.rows));
  }

  static void Widen(const DisaggregatedPipeline& pipeline, Pipeline& most) {
    most.micro_batches = std::max(most.micro_batches, pipeline.micro_batches);
    most.chunks = std::max(most.chunks, pipeline.chunks);
  }

  void AddProposals(const std::vector<DisaggregatedChoice>& choices, size_t count,
                    std::vector<Pipeline>& proposals) const {
    for (size_t i = 0; i < std::min(count, choices.size()); ++i) {
      AddOnce(choices[i].pipeline, proposals);
    }
  }

  // PPPipe with the best number of micro-batches, and nothing beside each other at all.
  void AddBaselines(const plan::LaneLines& lines, const strategy::StepLoad& load,
                    std::vector<Pipeline>& proposals) const {
    if (wanted_.chunks.value_or(1) > 1) return;
    const DisaggregatedQuestion question = Ask(lines, load);
    const int fewest = wanted_.strategy == plan::DisaggregatedStrategy::kPpPipe ? 2 : 1;
    DisaggregatedPipeline best{.micro_batches = fewest, .dispatch_after_shared = true};
    double least = 0;
    for (int r1 = fewest; r1 <= question.most_micro_batches && r1 <= load.rows; ++r1) {
      const DisaggregatedPipeline pipeline{.micro_batches = r1, .dispatch_after_shared = true};
      const double seconds =
          ClosedFormSeconds(question.lines, pipeline, static_cast<double>(load.rows) / r1);
      if (least > 0 && seconds >= least) continue;
      least = seconds;
      best = pipeline;
    }
    AddOnce(best, proposals);
    AddOnce({.dispatch_after_shared = true}, proposals);
  }

  // As it was asked for, also where the step that it is for stays whole.
  void AddOnce(const DisaggregatedPipeline& proposal, std::vector<Pipeline>& proposals) const {
    const Pipeline pipeline = wanted_.Adapt(ToPipeline(proposal));
    const auto found = std::find(proposals.begin(), proposals.end(), pipeline);
    if (found == proposals.end()) proposals.push_back(pipeline);
  }

  PlanSearch& search_;
  const Candidate& base_;
  const StepPricer& pricer_;
  const WantedTurns wanted_;
};

void AddPipelinesOf(PlanSearch& search, const Candidate& base, const Solved& solved) {
  Candidate candidate = base;
  candidate.plan.layout = solved.layout;
  for (const Pipeline& pipeline : solved.proposals) {
    candidate.plan.pipeline = pipeline;
    AddPriced(search, candidate);
  }
  // Steps may differ only where there could be more than one way.
  if (!WantedTurnsOf(search).allow_lines() || solved.most == Pipeline()) return;
  candidate.plan.pipeline = solved.most;
  candidate.plan.lines = solved.lines;
  AddPriced(search, std::move(candidate));
}

void AddLayoutsOf(PlanSearch& search, const Candidate& base, const StepPricer& pricer) {
  const PlanQuestion& question = search.question();
  Solver solver(search, base, pricer);
  std::vector<Solved> all;
  for (const Layout& layout : DisaggregatedLayouts(question, base.setup)) {
    Candidate candidate = base;
    candidate.plan.layout = layout;
    // What does not fit without a pipeline fits with none.
    Candidate tried = candidate;
    const auto memory =
        question.memory_of(tried.setup, tried.plan, FewestTogether(question.workload));
    const bool fits = memory && memory->fits(question.memory_per_rank(base.setup.num_ranks));
    Result<Solved> solved = fits ? solver.Solve(layout) : Result<Solved>(Error{""});
    if (solved) {
      all.push_back(*std::move(solved));
      continue;
    }
    Candidate* const added = search.Add(std::move(candidate));
    if (added == nullptr) continue;
    if (fits) {
      search.Reject(*added, solved.error().message);
    } else {
      search.CheckMemory(*added);
    }
  }
  std::ranges::stable_sort(all, {}, &Solved::seconds);
  for (size_t i = 0; i < all.size(); ++i) {
    if (i < kMostPriced) {
      AddPipelinesOf(search, base, all[i]);
      continue;
    }
    Candidate candidate = base;
    candidate.plan.layout = all[i].layout;
    Candidate* const added = search.Add(std::move(candidate));
    if (added == nullptr) continue;
    search.Reject(
        *added, fmt::format("by lines through its tasks' prices it takes {:.1f} % longer than {}, "
                            "and {} such layouts are priced",
                            100 * (all[i].seconds / all.front().seconds - 1),
                            plan::ToText(all.front().layout), kMostPriced));
  }
}

}  // namespace

void AddDisaggregated(PlanSearch& search) {
  const PlanQuestion& question = search.question();
  const Constraints& constraints = question.constraints;
  const std::optional<Pipeline>& wanted = constraints.pipeline;
  const bool cuts_experts =
      wanted && wanted->chunks > 1 && wanted->cut == strategy::ChunkCut::kExperts;
  const bool has_turns = !cuts_experts && (!wanted || wanted->overlap);
  const bool is_possible = has_turns && FewestExperts(question.spec) > 0 &&
                           !question.spec.has_encoder() && !constraints.decode_experts &&
                           (!constraints.layout || constraints.layout->disaggregates);
  if (!is_possible) return;
  std::vector<Candidate> bases;
  std::set<RankSetup> seen;
  for (const Candidate& candidate : search.candidates()) {
    const bool is_known = candidate.rejected_by != "setups" && candidate.rejected_by != "ranks";
    if (!is_known || search.IsForComparison(candidate) || candidate.setup.num_ranks < 2 ||
        !seen.insert(candidate.setup).second)
      continue;
    Candidate base{.setup = candidate.setup, .plan = {}};
    base.plan.wire = constraints.wire.value_or(plan::Wire::kF32);
    const WantedTurns turns = WantedTurnsOf(search);
    base.plan.pipeline.micro_batches = turns.micro_batches.value_or(1);
    base.plan.pipeline.chunks = turns.chunks.value_or(1);
    bases.push_back(std::move(base));
  }
  for (const Candidate& base : bases) {
    const Result<std::unique_ptr<StepPricer>> pricer =
        question.source.PricerOf(base.setup, Conditions(), /*comm_budget=*/0);
    if (pricer) AddLayoutsOf(search, base, **pricer);
  }
}

}  // namespace convene::planner
