// Costs of steps that are refined by steps of models that ran later: of each kind of task by how
// much longer it took than was predicted. Of which plans they are does not matter: a factor of a
// kind holds for all plans.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "cost/step_costs.h"
#include "cost/task_parts.h"
#include "schedule/timeline.h"

namespace convene::cost {

// Of fewer tasks nothing is learnt: they say more of a moment than of the machine.
inline constexpr int kFewestRefiningTasks = 4;

// A step that ran. What it points to outlives it.
struct TracedCosts {
  const schedule::Schedule* schedule = nullptr;
  const schedule::Timeline* timeline = nullptr;  // of all tasks
  std::span<const TaskParts> parts = {};         // by task
  // How slow the machine was beside how it was when the costs were measured: a machine that drifts
  // is not taken for costs that are wrong.
  MachineState state = {};
};

// What was found of a kind of task.
struct KindRefinement {
  int num_tasks = 0;
  double factor = 1;        // of its seconds
  double error_before = 0;  // the mean, over seconds, of |predicted / measured - 1|
  double error_after =
      0;  // each step predicted with what the other steps say, if there are several
  bool is_used = false;
};

struct Refinement {
  StepCosts costs;
  // The steps read so few weights that caches may have had them: tasks of the costs have theirs
  // from memory, as those of larger models, and were left alone.
  bool fits_caches = false;
  // By the kind as which they are measured: pieces of attention are among its tasks.
  std::array<std::optional<KindRefinement>, schedule::kNumTaskKinds> tasks = {};
  std::optional<KindRefinement> exchange = {};

  // Whether anything was corrected.
  bool is_used() const {
    const auto counts = [](const auto& kind) { return kind && kind->is_used; };
    return counts(exchange) || std::any_of(tasks.begin(), tasks.end(), counts);
  }
};

// A factor is used where it lowers the errors of steps that had no part in it, and where there is
// one step alone if there are enough tasks. Exchanges with computation beside them are left out:
// their time is not theirs alone; so are tasks of steps whose exchanges run beside computation.
// Tasks whose kind has no cost are, too. Where all ranks of the largest step together read no more
// weights than `cache_bytes`, which the last caches hold, only exchanges are refined; 0: the costs
// are to be those of these steps. Errors at points that were held out when the costs were measured
// stay, and so do intervals: those that these steps have are of one model, and a prediction of
// another one would seem surer than it is. Precondition: schedules of as many ranks as the costs
// are of.
Refinement RefineStepCosts(StepCosts costs, std::span<const TracedCosts> steps,
                           uint64_t cache_bytes);

}  // namespace convene::cost
