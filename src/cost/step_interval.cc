#include "cost/step_interval.h"

#include <algorithm>
#include <cmath>
#include <optional>

namespace convene::cost {
namespace {

// How far seconds may be from what is predicted, in either direction: an error that was nearly
// always of one sign is not taken for a gain. `overlapped`: seconds of steps whose exchanges run
// beside computation.
double SpreadOf(const KindSeconds& seconds, double overlapped, const StepCosts& costs) {
  double squares = 0;
  const auto add = [&](double part, const std::optional<HeldOut>& held_out) {
    if (!held_out) return;
    squares += std::pow(part * std::max(std::abs(held_out->low), std::abs(held_out->high)), 2);
  };
  for (size_t kind = 0; kind < seconds.size(); ++kind) add(seconds[kind], costs.held_out[kind]);
  add(overlapped, costs.overlapped_held_out);
  return std::sqrt(squares);
}

}  // namespace

KindSeconds SecondsOnPath(const schedule::Schedule& schedule, const schedule::Timeline& timeline) {
  KindSeconds seconds = {};
  for (const schedule::TaskId id : CriticalPath(schedule, timeline)) {
    seconds[static_cast<size_t>(schedule.tasks[id].kind)] += timeline.tasks[id].seconds();
  }
  return seconds;
}

Interval IntervalOf(const Outline& step, const StepCosts& costs) {
  const double spread = SpreadOf(step.by_kind, step.overlaps ? step.seconds : 0, costs);
  return {.low = std::max(0.0, step.seconds - spread), .high = step.seconds + spread};
}

Interval IntervalOfDifference(const Outline& first, const Outline& second, const StepCosts& costs) {
  KindSeconds difference = first.by_kind;
  for (size_t kind = 0; kind < difference.size(); ++kind) difference[kind] -= second.by_kind[kind];
  const double overlapped =
      (first.overlaps ? first.seconds : 0) - (second.overlaps ? second.seconds : 0);
  const double spread = SpreadOf(difference, overlapped, costs);
  const double seconds = first.seconds - second.seconds;
  return {.low = seconds - spread, .high = seconds + spread};
}

}  // namespace convene::cost
