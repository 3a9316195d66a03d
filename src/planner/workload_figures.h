// What a workload takes when it is run in some way: time to first token, time per token and
// throughput, from the few steps that stand for all. What else could be run is plan_search.h.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>

#include "base/result.h"
#include "plan/plan.h"
#include "planner/plan_question.h"
#include "planner/whole_step.h"
#include "planner/workload.h"
#include "planner/workload_steps.h"
#include "strategy/step_load.h"

namespace convene::planner {

// How steps are built, in both phases.
struct PhaseStepOptions {
  const model::ModelSpec& whole_spec;
  const ShortModel& model;
  const ShortModel& overlapping_model;  // for steps in which layers overlap
  // Of a model with an encoder: likewise, for its steps; null: it has none.
  const ShortModel* encoder_model = nullptr;
  const ShortModel* overlapping_encoder = nullptr;
  strategy::Roles roles = {};
  strategy::Roles decode_roles = {};
  strategy::Pipeline pipeline = {};
  int cut_from_tokens = 0;  // as plan::Plan's
  strategy::ElementBytes bytes = {};
  // Of each group of ranks, or as many as it has sequences that run together, where these are more.
  int step_tokens = 512;
  bool keeps_step_tokens = false;  // more sequences are then an error
  // Of a step of so many tokens, where experts are read from a disk; empty: none are.
  std::function<strategy::Paging(int64_t num_tokens, bool encoder)> paging_of = {};
  // Of a step of a batch of so many sequences, where keys and values are spilled; empty: they are
  // in memory.
  std::function<std::optional<strategy::SpilledKv>(int batch, const StepSequences& groups)>
      spilled_of = {};
  // Of a step with such a load, where each has a pipeline of its own; empty: all have `pipeline`.
  std::function<strategy::Pipeline(const strategy::StepLoad&)> pipeline_of = {};
  // Of plans that divide the experts otherwise in decode.
  bool changes_layout = false;
  plan::PhaseChange phase_change = {};
  // Experts move to the division of decode and back; or where they come from a backup (`loads`),
  // back alone: the way to decode lies beside the last prompts.
  WholeStep round_trip = {};
  std::optional<strategy::ExpertLoads> loads = {};  // to decode
  // Whether so many sequences have the memory to run together, of goodput; empty: any number has.
  std::function<bool(int batch)> has_room = {};
  double solver_seconds = 0;  // that were taken to find the plan: before the first token
};

// All prompts first, then all answers, a token of each sequence per step. The first token of an
// answer comes with its prompt.
// - With a batch, so many sequences begin together. Goodput: the largest of the batch, its half and
//   so on that has the memory and meets the limits.
// - With an arrival rate prompts come one by one and are computed before answers go on, which takes
//   the share rate x (seconds of a prompt) of the time. As many sequences run together as give the
//   rate in the rest of it. A prompt waits as in a queue with regular service (M/D/1), and, where
//   it comes in that rest, for half of the step of decode that is under way.
// Where the experts of decode are divided otherwise, they move there and back once for each batch.
// Of prompts that come one by one they do so once for each epoch of so many steps of decode, of
// which each has its part of that time; a prompt waits half an epoch in place of half a step (a
// queue whose server takes vacations: Doshi 1986, Queueing Systems 1). Without epochs such a stream
// keeps the division of prefill, as engine/phase_order.h executes it. `num_simulated` is raised by
// the steps that were simulated. Errors: those of PredictStep; limits that no batch meets; more
// requests than can be answered.
Result<PlanFigures> PredictWorkload(const Workload& workload, const PhaseStepOptions& options,
                                    const StepPricer& pricer, int* num_simulated);

// Of a greedy token of each of `batch` sequences, as PredictWorkload adds them to all prompts and
// to a step of decode with these roles. 0: ranks divide the head and find the largest logits in
// tasks of the step, or nobody measured it.
double SamplingSeconds(const StepPricer& pricer, const model::ModelSpec& spec,
                       const strategy::Roles& roles, int batch);

}  // namespace convene::planner
