// How far a step's time may be from what is predicted: what errors each kind of task had at points
// that were held out from fitting, by the seconds that the step waits for tasks of that kind. How
// the machine's speed wanders is not in it.
#pragma once

#include <array>
#include <optional>

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

// Unset: nobody measured it.
struct StepErrors {
  // Of exchanges: by `exchanges`.
  std::array<std::optional<ErrorRange>, schedule::kNumTaskKinds> by_kind = {};
  std::optional<ErrorRange> exchanges = {};   // of all kinds: one curve prices them
  std::optional<ErrorRange> overlapped = {};  // of whole steps with exchanges beside computation
  // Times which intervals of steps are as wide as all that makes them. Tasks of another model are
  // farther from those that were measured than such tasks are from each other, and kinds are not
  // quite independent of each other.
  double stretch = 1;
};

// Those at points that were held out.
StepErrors ErrorsOf(const StepCosts& costs);

// What is taken where nobody measured an error and something is decided by it: of the kinds of task
// whose errors are known nine points in ten lay within 7 to 16 % (docs/results/predictions.md).
inline constexpr double kUsualError = 0.1;
StepErrors WithUsualErrors(StepErrors errors);

// What is predicted of a step, of several, or of a part of one.
struct Outline {
  double seconds = 0;
  KindSeconds by_kind = {};       // what they consist of
  double overlapped_seconds = 0;  // of steps whose exchanges run beside computation (Overlaps)
  double extrapolated_share = 0;  // of tasks' seconds, at sizes beyond those measured
};

// Nine steps in ten should lie in it, on a machine as fast as when it was measured. Tasks of one
// kind are wrong in the same way, kinds are wrong independently of each other, and where exchanges
// run beside computation whole steps are as wrong as such steps were. All that is stretched. What
// is extrapolated widens it in proportion. It contains what is predicted, and reaches as many times
// below it as above: an error that was nearly always of one sign is not taken for a gain. What
// nobody measured is taken to be right.
Interval IntervalOf(const Outline& step, const StepErrors& errors);

// Of how many seconds longer the first takes than the second, both of one model. What both have in
// common is wrong in both, and counts for nothing; what is wrong because the model is another one
// than those that were measured is in both, so that nothing is stretched. What nobody measured has
// the usual errors.
Interval IntervalOfDifference(const Outline& first, const Outline& second,
                              const StepErrors& errors);

// Whether some of that is the usual errors, for people to be told.
bool HasUsualErrors(const Outline& first, const Outline& second, const StepErrors& errors);

// Whether the first takes longer whatever the errors leave open, and by enough to tell: what is
// less than kLeastGain is within what prices are rounded by, and no reason to do what is less
// simple.
inline constexpr double kLeastGain = 1.002;
bool SurelyTakesLonger(const Outline& first, const Outline& second, const StepErrors& errors);

}  // namespace convene::cost
