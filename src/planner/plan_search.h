// The one search over everything that can be executed: passes that add candidates, price them and
// reject them, each with its name, its time and its reasons. It executes nothing and reads nothing.
#pragma once

#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <tuple>
#include <vector>

#include "planner/plan_question.h"
#include "planner/workload_steps.h"

namespace convene::planner {

// Up to so many ranks every number of ranks, and every format of weights, is searched whole.
inline constexpr int kFewRanks = 16;

// What PlanSearch::Fit says of a plan.
struct FittedPlan {
  plan::Plan plan;
  PlanFigures figures;
  RankMemory memory = {};
};

// What passes work on.
class PlanSearch {
 public:
  // Keeps the reference.
  explicit PlanSearch(const PlanQuestion& question);

  const PlanQuestion& question() const { return question_; }
  std::vector<Candidate>& candidates() { return candidates_; }

  // The candidate, valid until the next Add; null: it was there before.
  Candidate* Add(Candidate candidate);
  void Reject(Candidate& candidate, std::string reason);
  // Sets figures, the memory, and of a plan whose experts lie on a disk how many stay in memory,
  // for as many sequences as run together then. A candidate that does not fit, cannot be priced, or
  // does not meet the workload's limits, is rejected.
  void Price(Candidate& candidate);
  // Of many ranks, weights in formats that are not allowed are there to be compared with in a few
  // layouts: no pass looks for more of them.
  bool IsForComparison(const Candidate& candidate) const {
    return question_.num_ranks > kFewRanks && candidate.changes_weights();
  }
  // The allowed one with the least score; null: none is priced yet. Valid until the next Add.
  const Candidate* Best() const;

  // Sets memory, that of the fewest sequences that may run together (FewestTogether), and
  // memory_limit; a candidate that does not fit is rejected, and false comes back.
  bool CheckMemory(Candidate& candidate);

  // A plan with its figures for a workload, and the memory for as many sequences as then run
  // together. Experts on a disk are counted anew (PlanQuestion::experts_that_fit) until those in
  // memory have room beside these sequences: more of them leave less room, with which steps take
  // longer, so that still more run together. Of goodput each number of sequences has its own number
  // of experts. Precondition: memory_limit, unless any memory will do. Errors: as FiguresOf; the
  // memory is not enough.
  Result<FittedPlan> Fit(const Candidate& candidate, const Workload& workload);

  // For those who ask what would be if: a plan as it is under other conditions.
  Result<PlanFigures> FiguresOf(const RankSetup& setup, const plan::Plan& plan,
                                const Workload& workload, const Conditions& conditions = {});
  // Moving the experts from the division of prefill to that of decode, and back; nothing where both
  // are one, or both stay in memory; the way back alone where they come to decode from a backup,
  // which is beside a step. Errors: as FiguresOf.
  Result<WholeStep> RoundTripOf(const RankSetup& setup, const plan::Plan& plan,
                                const Conditions& conditions = {});
  // A step of few of the model's layers, the first, the last and those that stand for the others:
  // of prefill the one with the most rows, of decode any. Errors: as FiguresOf.
  Result<PredictedStep> DrawStep(const RankSetup& setup, const plan::Plan& plan,
                                 strategy::Phase phase);
  // Of the pricer that FiguresOf takes under usual conditions. Precondition: it has been there.
  const StepPricer& PricerOf(const Candidate& candidate) const {
    return *pricers_.at({candidate.setup, candidate.plan.comm_budget});
  }

  // Of the formats, the first in which a plan that may be chosen fits memory; empty: it has not
  // been found yet. It stays what it was once: what later passes add does not forbid what was
  // allowed.
  const std::string& first_format() const { return first_format_; }
  void UseFormat(std::string format) { first_format_ = std::move(format); }

  int num_simulated() const { return num_simulated_; }
  // Of an integer program: part of what every plan that divides the experts otherwise in decode
  // is predicted to take before its first token, and not of its score.
  void AddSolverSeconds(double seconds) { solver_seconds_ += seconds; }
  void UsePass(std::string name) { pass_ = std::move(name); }
  // What the pass that is in use has found besides candidates.
  void Remark(std::string text) { remark_ = std::move(text); }
  std::string TakeRemark() { return std::exchange(remark_, {}); }

 private:
  // Of a plan whose experts come from a backup, and go back.
  strategy::ExpertLoads LoadsOf(const RankSetup& setup, const plan::Plan& plan,
                                strategy::Phase to) const;
  // Of a plan with experts_in_memory.
  strategy::Paging PagingOf(const plan::Plan& plan, int64_t num_tokens, bool encoder) const;
  // Of a plan with spilled_kv, and a step of a batch of so many sequences of the workload.
  static std::optional<strategy::SpilledKv> SpilledOf(const plan::Plan& plan,
                                                      const Workload& workload, int batch,
                                                      const StepSequences& groups);
  bool CountsExperts(const Candidate& candidate) const;
  // Fit where a plan's experts are counted for the batch, or requests arrive at a rate.
  Result<FittedPlan> FitExperts(const Candidate& candidate, const Workload& workload);
  Result<const StepPricer*> FindPricer(const RankSetup& setup, const plan::Plan& plan,
                                       const Conditions& conditions);

  const PlanQuestion& question_;
  // A model that stands for the whole one, one for steps in which layers overlap, and the whole
  // one, for plans that divide its layers.
  struct ShortModels {
    ShortModel whole;
    ShortModel plain;
    ShortModel overlapping;
    // Of the encoder, where there is one.
    std::optional<ShortModel> encoder = {};
    std::optional<ShortModel> overlapping_encoder = {};
  };
  ShortModels ShortenFor(const Routing& routing) const;

  ShortModels short_models_;
  std::vector<Candidate> candidates_;
  using PricedAs = std::pair<RankSetup, int>;                // and the plan's comm_budget
  std::map<PricedAs, std::unique_ptr<StepPricer>> pricers_;  // under usual conditions
  std::map<RankSetup, double> weight_bytes_;                 // of all ranks, where it was asked
  std::unique_ptr<StepPricer> last_pricer_;                  // under others
  std::pair<PricedAs, Conditions> last_pricer_of_;
  int num_simulated_ = 0;
  double solver_seconds_ = 0;
  std::string pass_;
  std::string remark_;
  std::string first_format_;
};

// A pass of the search, in the order of the list. A new system adds a line there.
struct SearchPass {
  std::string_view name;
  std::string_view purpose;
  void (*run)(PlanSearch& search);
  bool can_be_off = true;
};
std::span<const SearchPass> SearchPasses();

// Error: a name that is of no pass that can be off.
Status CheckPasses(const std::vector<std::string>& names);

// Of plans that may be chosen, the fastest first (at least one): the simplest of which it is not
// certain that the fastest is faster, and to which no faster one is as simple.
const Candidate& ChoiceOf(const PlanSearch& search, const std::vector<const Candidate*>& sorted);

// Sets which of the answer's candidates is chosen, which is the fastest of those that may be, and
// why they are two. Precondition: there is one.
void Choose(const PlanSearch& search, PlanAnswer& answer);

// Why a search has nothing to choose: not enough memory, with what would do; costs that were not
// measured; limits that nothing meets. Precondition: it has nothing.
Error WhyNothing(PlanSearch& search);

// Error: an input of an encoder, which sees it whole, that is longer than a step.
Status CheckInputs(const PlanQuestion& question);

// Errors: a pass to be switched off that there is not; nothing is known of the machine for any
// number of ranks; no plan fits memory, with what would do; no plan meets the workload's limits.
Result<PlanAnswer> SearchPlan(const PlanQuestion& question);
// The same with a search that can be asked further.
Result<PlanAnswer> SearchPlan(PlanSearch& search);

}  // namespace convene::planner
