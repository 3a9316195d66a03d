// Which of the plans that a search has priced is taken. How they are found and priced is
// plan_search.cc.
#include <fmt/format.h>

#include <string>
#include <tuple>
#include <vector>

#include "base/check.h"
#include "planner/plan_search.h"

namespace convene::planner {
namespace {

// A gain of so much is taken even where its interval contains none: among measured plans the one
// that was predicted best lost 0 % in the median and 10.5 % at worst
// (docs/results/predictions.md).
constexpr double kCertainGain = 1.1;

// What is preferred where gains are not certain: the smaller, the simpler. One division of the work
// throughout, whichever it is, is simpler than two.
auto Complexity(const PlanSearch& search, const Candidate& candidate) {
  const plan::Plan& plan = candidate.plan;
  const bool is_present = search.question().present == plan;
  const bool is_usual = plan.layout == plan::DefaultLayout(candidate.setup.num_ranks);
  return std::tuple(!is_present, candidate.setup.num_ranks > 1,
                    plan.changes_layout() || plan.layout.disaggregates,
                    plan.experts_in_memory.has_value(), plan.spilled_kv.has_value(),
                    plan.step_tokens > 0, plan.pipeline.chunks > 1, !plan.pipeline.cuts.empty(),
                    plan.pipeline.micro_batches > 1, plan.cut_from_tokens > 0, plan.comm_budget > 0,
                    !is_usual, candidate.setup.num_ranks);
}

// Whether it is known of a plan that a faster one is faster.
bool IsCertainlySlower(const PlanSearch& search, const Candidate& slower, const Candidate& faster) {
  if (slower.figures->score >= faster.figures->score * kCertainGain) return true;
  return cost::SurelyTakesLonger(OutlineOfScore(*slower.figures), OutlineOfScore(*faster.figures),
                                 search.PricerOf(faster).Errors());
}

// To go on with "which is".
std::string WhyUncertain(const Candidate& slower, const Candidate& faster,
                         const cost::StepErrors& errors) {
  if (slower.figures->score < cost::kLeastGain * faster.figures->score) return "too little to tell";
  const bool has_usual = cost::HasUsualErrors(OutlineOfScore(*slower.figures),
                                              OutlineOfScore(*faster.figures), errors);
  return fmt::format("within the interval of the difference{}",
                     has_usual ? fmt::format(" (part of its error is not known, and taken to be "
                                             "{:.0f} %)",
                                             100 * cost::kUsualError)
                               : "");
}

}  // namespace

const Candidate& ChoiceOf(const PlanSearch& search, const std::vector<const Candidate*>& sorted) {
  CHECK(!sorted.empty());
  const Candidate* chosen = sorted.front();
  // The simplest so far, whether it may be as fast as the fastest or not.
  const Candidate* simplest = sorted.front();
  for (const Candidate* one : sorted) {
    if (!(Complexity(search, *one) < Complexity(search, *simplest))) continue;
    simplest = one;
    if (!IsCertainlySlower(search, *one, *sorted.front())) chosen = one;
  }
  return *chosen;
}

void Choose(const PlanSearch& search, PlanAnswer& answer) {
  const std::vector<Candidate>& candidates = answer.candidates;
  std::vector<const Candidate*> sorted;
  for (const Candidate& one : candidates) {
    if (one.is_ranked() && one.is_allowed()) sorted.push_back(&one);
  }
  CHECK(!sorted.empty(), "a search without a choice");
  const Candidate& fastest = *sorted.front();
  const Candidate& chosen = ChoiceOf(search, sorted);
  answer.fastest = static_cast<int>(&fastest - candidates.data());
  answer.chosen = static_cast<int>(&chosen - candidates.data());
  if (&chosen == &fastest) return;
  answer.why_chosen =
      fmt::format("{} is predicted to take {:.1f} % less time, which is {}: {}", Describe(fastest),
                  100 * (1 - fastest.figures->score / chosen.figures->score),
                  WhyUncertain(chosen, fastest, search.PricerOf(fastest).Errors()),
                  search.question().present == chosen.plan ? "the plan that runs now stays"
                                                           : "the simpler plan is taken");
}

}  // namespace convene::planner
