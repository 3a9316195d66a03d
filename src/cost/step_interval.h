// How far a step's time may be from what is predicted: what errors each kind of task had at points
// that were held out from fitting, by the seconds that the step waits for tasks of that kind. How
// the machine's speed wanders is not in it.
#pragma once

#include <array>

#include "cost/step_costs.h"
#include "schedule/timeline.h"

namespace convene::cost {

// By TaskKind, of the tasks that one after the other make the length of a step.
using KindSeconds = std::array<double, schedule::kNumTaskKinds>;

// Of the critical path.
KindSeconds SecondsOnPath(const schedule::Schedule& schedule, const schedule::Timeline& timeline);

struct Interval {
  double low = 0;
  double high = 0;
};

// What is predicted of a step, or of a part of it.
struct Outline {
  double seconds = 0;
  KindSeconds by_kind = {};  // what they consist of
  bool overlaps = false;     // exchanges run beside computation (Overlaps)
};

// Nine steps in ten should lie in it, on a machine as fast as when it was measured. Tasks of one
// kind are wrong in the same way, kinds are wrong independently of each other, and where exchanges
// run beside computation whole steps are as wrong as such steps were. It contains what is
// predicted.
Interval IntervalOf(const Outline& step, const StepCosts& costs);

// Of how many seconds longer the first takes than the second. What both have in common is wrong in
// both, and counts for nothing.
Interval IntervalOfDifference(const Outline& first, const Outline& second, const StepCosts& costs);

}  // namespace convene::cost
