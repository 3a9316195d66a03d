// Costs of steps, fitted to steps that ran on a machine and its links. Steps of models that were
// invented for measuring give them; the models that are then predicted had no part in it.
#pragma once

#include <span>
#include <vector>

#include "cost/sizes.h"
#include "cost/step_costs.h"
#include "schedule/schedule.h"
#include "schedule/timeline.h"

namespace convene::cost {

// Shorter tasks have nothing to do: reading the clock takes longer.
inline constexpr double kLeastTaskSeconds = 2e-7;

// A step that ran to be measured, several times. What it points to outlives it.
struct SampledStep {
  const schedule::Schedule* schedule = nullptr;
  Sizes sizes;
  std::vector<schedule::Timeline> timelines;  // by round
  std::vector<MachineState> states;           // likewise
  bool overlaps = false;                      // exchanges ran beside computation
  // Keys and values are cached in int8: only attention counts, as StepCosts::int8_attention.
  bool int8_kv = false;
  // Its weights stay in the last-level cache: its tasks are of StepCosts::cached_tasks alone.
  bool has_cached_weights = false;
  int fold = 0;   // as TaskSample's
  int model = 0;  // which of the models that are measured

  // Of a part of the costs alone, and of a model that is not like those that run.
  bool is_special() const { return int8_kv || has_cached_weights; }
};

// A collective lasts from when its last rank has come to it until all ranks are through with it.
// This is so when it is measured, when it is simulated, and in tables. Below 0: a task did not run.
double CollectiveSeconds(const schedule::Timeline& timeline,
                         std::span<const schedule::TaskId> tasks);

// Whether a rank computed while it was in the collective. Then it does not wait for it, and is
// through with it when it looks. What a rank computes that is through already counts for nothing:
// on a slow link the one that sends is through long before the one that receives.
bool HasComputationBeside(const schedule::Schedule& schedule, const schedule::Timeline& timeline,
                          std::span<const schedule::TaskId> tasks);

struct FitOptions {
  double unevenness = 0;  // as ExchangeCost's, which was measured by itself
  bool validates = true;  // with errors at held-out points, which take most of the time
  // How much of the memory's speed tasks feel is taken from these, where it is not looked for
  // (without validating); null: all of it.
  const StepCosts* sensitivities_of = nullptr;
  bool is_of_plan = false;  // as ExchangeCost's: the steps are one plan's, which is priced by them
};

// Kinds that did not run have no cost. The number of ranks, of threads and the format are the
// caller's to set.
StepCosts FitStepCosts(std::span<const SampledStep> steps, const ReferenceSpeed& reference,
                       const FitOptions& options = {});

// What a byte that is sent beside computation takes of a core, from those of `steps` that overlap;
// `costs` say all else. Without `left_out` (null: none), so that it can be tried on that step.
double CoreSecondsPerByte(std::span<const SampledStep> steps, StepCosts costs,
                          const SampledStep* left_out);

}  // namespace convene::cost
