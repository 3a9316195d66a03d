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
  // Sets figures and needs, and the memory of one that was made from another. A candidate that does
  // not fit, cannot be priced, or does not meet the workload's limits, is rejected.
  void Price(Candidate& candidate);
  // Of many ranks, weights in formats that are not allowed are there to be compared with in a few
  // layouts: no pass looks for more of them.
  bool IsForComparison(const Candidate& candidate) const {
    return question_.num_ranks > kFewRanks && candidate.changes_weights();
  }
  // The allowed one with the least score; null: none is priced yet. Valid until the next Add.
  const Candidate* Best() const;

  // Sets memory and memory_limit; a candidate that does not fit is rejected, and false comes back.
  bool CheckMemory(Candidate& candidate);

  // For those who ask what would be if: a plan under other conditions.
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
  std::unique_ptr<StepPricer> last_pricer_;                  // under others
  std::pair<PricedAs, Conditions> last_pricer_of_;
  int num_simulated_ = 0;
  double solver_seconds_ = 0;
  std::string pass_;
  std::string remark_;
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
