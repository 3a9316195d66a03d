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

// Of nine tasks in ten, what was measured / what was predicted - 1 lay between these.
struct ErrorRange {
  double low = 0;
  double high = 0;
};

struct StepErrors {
  std::array<ErrorRange, schedule::kNumTaskKinds> by_kind = {};  // of exchanges: by `exchanges`
  ErrorRange exchanges = {};   // of all kinds: one curve prices them
  ErrorRange overlapped = {};  // of whole steps whose exchanges run beside computation
  // Times which intervals of steps are as wide as all that makes them. Tasks of another model are
  // farther from those that were measured than such tasks are from each other, and kinds are not
  // quite independent of each other.
  double stretch = 1;
};

// Those at points that were held out. What was not measured is taken to be right.
StepErrors ErrorsOf(const StepCosts& costs);

// What is predicted of a step, of several, or of a part of one.
struct Outline {
  double seconds = 0;
  KindSeconds by_kind = {};       // what they consist of
  double overlapped_seconds = 0;  // of steps whose exchanges run beside computation (Overlaps)
  double extrapolated_share = 0;  // of computing seconds, at sizes beyond those measured
};

// Nine steps in ten should lie in it, on a machine as fast as when it was measured. Tasks of one
// kind are wrong in the same way, kinds are wrong independently of each other, and where exchanges
// run beside computation whole steps are as wrong as such steps were. All that is stretched. What
// is extrapolated widens it in proportion. It contains what is predicted, and reaches as many times
// below it as above: an error that was nearly always of one sign is not taken for a gain.
Interval IntervalOf(const Outline& step, const StepErrors& errors);

// Of how many seconds longer the first takes than the second, both of one model. What both have in
// common is wrong in both, and counts for nothing; what is wrong because the model is another one
// than those that were measured is in both, so that nothing is stretched.
Interval IntervalOfDifference(const Outline& first, const Outline& second,
                              const StepErrors& errors);

}  // namespace convene::cost
