// The best plans of a search run before one of them is trusted: what was predicted of them beside
// what was measured, whether the choice stands, and what costs learn from it. How plans run is
// evaluate/try_plans.h; how they were found planner/plan_search.h.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <span>
#include <string>
#include <vector>

#include "base/result.h"
#include "comm/group.h"
#include "cost/machine_profile.h"
#include "evaluate/try_plans.h"
#include "planner/plan_search.h"

namespace convene::cli {

inline constexpr size_t kMostTried = 3;  // plans

struct VerifyWish {
  std::string directory;                      // of the model, with its weights
  std::string model_hash;                     // plan::ModelHash
  double seconds = 0;                         // that runs may take, without loading
  double most_load_seconds = 0;               // as evaluate::TrialQuestion's
  std::vector<uint64_t> memory_budgets = {};  // likewise
  size_t most_plans = kMostTried;
};

// Of the steps that stand for all prompts, and of one that generates a token of each sequence.
struct PhaseSeconds {
  double prefill = 0;
  double decode = 0;  // 0: the workload has no such step
  // Of experts that move between the two, there and back, once for all steps of a batch.
  double transition = 0;
};

struct VerifiedPlan {
  int candidate = -1;        // of the answer
  std::string why_not = {};  // it did not run; empty: it did
  double load_seconds = 0;
  bool loaded_anew = false;
  int num_runs = 0;
  PhaseSeconds predicted = {};  // on the machine as it was when it ran
  PhaseSeconds measured = {};   // likewise, the mean of the runs
  double spread = 0;            // the longest of its runs by the shortest, less 1
  // The costs had learnt from this very plan before: no test of a prediction.
  bool is_known = false;
};

struct Verification {
  std::vector<VerifiedPlan> plans;  // the chosen one first
  double run_seconds = 0;
  double noise = 0;  // as evaluate::Judgement's
  bool is_confirmed = false;
  bool is_corrected = false;
  std::string verdict;
  cost::MachineState state = {};    // mean of all runs
  std::vector<std::string> learnt;  // what of the profile was changed, for people
  bool fits_caches = false;         // as cost::Refinement's
};

// Candidates of the answer that would run, at most so many: the chosen one, and the best others
// that may be chosen, of as many ranks and threads, with everything in memory. The chosen one alone
// where it has not.
std::vector<int> PlansToTry(const planner::PlanAnswer& answer, size_t most = kMostTried);

// What is asked of the trials of these candidates: the steps that stand for the workload, and its
// routing.
evaluate::TrialQuestion TrialQuestionOf(const VerifyWish& wish, const planner::PlanSearch& search,
                                        const planner::PlanAnswer& answer,
                                        std::span<const int> plans);

// As costs that learn from a plan name it: "2 ranks x 1 thread, int8, ... of model HASH".
std::string NameOfPlan(const planner::Candidate& candidate, const std::string& model_hash);

// *Collective* with FollowRankZero. Runs the chosen plan and the best others that may be chosen, of
// as many ranks as there are and with as many threads as the chosen one. A correction changes
// `answer`; what was learnt `profile`, which the search must not read afterwards. Errors: the
// chosen plan is for another number of ranks; those of evaluate::TryPlans.
Result<Verification> VerifyPlans(const VerifyWish& wish, comm::Group& ranks,
                                 planner::PlanSearch& search, planner::PlanAnswer& answer,
                                 cost::MachineProfile* profile);

std::string ToText(const Verification& verification, const planner::PlanAnswer& answer);
nlohmann::ordered_json ToJson(const Verification& verification, const planner::PlanAnswer& answer);

}  // namespace convene::cli
