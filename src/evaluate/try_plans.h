// Plans that really run: of each some steps of a workload with the model's own weights, plans in
// turn and in reverse order, with the reference kernels beside every run. Which plans are worth it,
// and what becomes of the figures, is cli/verify_plan.h.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <span>
#include <string>
#include <vector>

#include "base/result.h"
#include "comm/group.h"
#include "cost/task_cost.h"
#include "plan/plan.h"
#include "planner/workload.h"
#include "runtime/recorded_step.h"
#include "runtime/router_override.h"

namespace convene::evaluate {

// What all ranks have to know to run the same.
struct TrialQuestion {
  // With the format of their weights and of their KV cache, where that is not the usual one, and
  // all with the same number of threads.
  std::vector<plan::Plan> plans = {};
  std::vector<planner::RequestLengths> sequences = {};  // that run together, with their prompts
  int prompt_tokens = 0;       // the mean of all, of which decode's context begins with as many
  int context = 0;             // tokens before a generated one; 0: no decode
  int step_tokens = 512;       // most tokens of a step of a group of ranks, unless a plan says it
  int expand_from_tokens = 0;  // as AttentionRole's: what the prices were made with
  runtime::RouterOverride router = {};  // of the workload; not set: the model's own routing
  // Most memory of each rank's process, or one number for all; none: what the machine has.
  std::vector<uint64_t> memory_budgets = {};
  double seconds = 0;  // that runs may take, without loading
  // That loading may take; weights of a plan behind the first are left alone where they would take
  // longer. 0: as long as it takes.
  double most_load_seconds = 0;
};
nlohmann::json ToJson(const TrialQuestion& question);
// Of what ToJson has written; anything else is a bug (CHECK).
TrialQuestion TrialQuestionFromJson(const nlohmann::json& json);

// Once through the steps that stand for the workload.
struct TrialRun {
  double prefill_seconds = 0;  // of all prompts; of an encoder-decoder with the first tokens
  double decode_seconds = 0;   // of a step, the mean of some; 0: no decode
  // Of a plan that divides the experts otherwise in decode: moving them there and back.
  double transition_seconds = 0;
  cost::ReferenceSpeed speed = {};                // meanwhile
  std::vector<runtime::RecordedStep> steps = {};  // one of each
};

struct TriedPlan {
  std::string why_not = {};  // it did not run; empty: it did
  bool loaded_anew = false;  // for it, since it places weights otherwise than those before
  double load_seconds = 0;
  std::vector<TrialRun> runs = {};  // in the order in which they ran
};

struct Trials {
  std::vector<TriedPlan> plans;  // in the order of the question
  double run_seconds = 0;        // without loading
};

// *Collective*; the trials are rank 0's. `directory`: where this rank has the model. A plan for
// which there is no memory beside the others, or no time, or that has experts or keys and values on
// a disk, is left out and says so; each that runs does so at least twice. Errors, on all ranks:
// ranks with different models, a number of threads that a rank does not have; on rank 0: a step
// that failed.
Result<Trials> TryPlans(comm::Group& group, const std::string& directory,
                        const TrialQuestion& question);

// On rank 0: tells the others and does its part. Errors: as TryPlans.
Result<Trials> AskForTrials(comm::Group& group, const std::string& directory,
                            const TrialQuestion& question);
// On the other ranks: engine::TrialSource.
void FollowTrials(comm::Group& group, const std::string& directory, const std::string& question);

// Steps of decode in a run: one alone would be over too soon.
inline constexpr int kDecodeSteps = 4;

// Of each of two plans, before one is said to be the faster: somebody who disturbs one turn there
// and back makes every run of one plan slower than those of another.
inline constexpr size_t kFewestRuns = 4;

// What runs of plans say, by what of each is to be small.
struct Judgement {
  int best = -1;     // of the plans, by the mean of its runs; -1: none ran
  double noise = 0;  // the most that two runs of the same plan differ, as a share
  // Against plan 0: every run of the best was shorter than every run of it, and by more than any
  // two runs of one plan differ, and there were kFewestRuns of each. True where plan 0 is the best.
  bool is_certain = false;
};
// By plan and run; plans without runs are left out.
Judgement Judge(std::span<const std::vector<double>> scores);

}  // namespace convene::evaluate
