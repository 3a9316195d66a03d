// Measured timelines to linear costs per kind of task, with which a schedule is then simulated.
#pragma once

#include <array>
#include <optional>
#include <span>

#include "cost/linear_fit.h"
#include "cost/rates.h"
#include "cost/sizes.h"
#include "schedule/timeline.h"

namespace convene::cost {

// A step that ran. What it points to outlives it.
struct MeasuredStep {
  const schedule::Schedule* schedule = nullptr;
  const schedule::Timeline* timeline = nullptr;
  Sizes sizes;  // those of the step
};

struct KindFit {
  Regressor over = Regressor::kFlops;  // the one that explains most
  LinearFit fit;                       // seconds over the regressor
};
using KindFits = std::array<std::optional<KindFit>, schedule::kNumTaskKinds>;

// Kinds that did not run have none. A collective counts once, from when its last rank came until
// its first one was through (clocks of ranks differ a little; waiting is none of its cost).
// Times of tasks that shared a resource with others have that in them already: calibrate on steps
// without overlap, or give the simulator no rate for what was shared, or it counts twice.
KindFits Calibrate(std::span<const MeasuredStep> steps);

// Sets Rates::measured to the fits.
void UseFits(const KindFits& fits, Rates& rates);

}  // namespace convene::cost
