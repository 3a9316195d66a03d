#include "cost/step_interval.h"

#include <algorithm>
#include <cmath>
#include <optional>

namespace convene::cost {
namespace {

struct Spread {
  double middle = 0;  // of what is measured beyond what is predicted
  double half = 0;    // from there to either end
};

// `overlapped`: seconds of steps whose exchanges run beside computation.
Spread SpreadOf(const KindSeconds& seconds, double overlapped, const StepCosts& costs) {
  Spread spread;
  double squares = 0;
  const auto add = [&](double part, const std::optional<HeldOut>& held_out) {
    if (!held_out) return;
    spread.middle += part * (held_out->low + held_out->high) / 2;
    squares += std::pow(part * (held_out->high - held_out->low) / 2, 2);
  };
  for (size_t kind = 0; kind < seconds.size(); ++kind) add(seconds[kind], costs.held_out[kind]);
  add(overlapped, costs.overlapped_held_out);
  spread.half = std::sqrt(squares);
  return spread;
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
  const Spread spread = SpreadOf(step.by_kind, step.overlaps ? step.seconds : 0, costs);
  const double middle = step.seconds + spread.middle;
  return {.low = std::max(0.0, std::min(step.seconds, middle - spread.half)),
          .high = std::max(step.seconds, middle + spread.half)};
}

Interval IntervalOfDifference(const Outline& first, const Outline& second, const StepCosts& costs) {
  KindSeconds difference = first.by_kind;
  for (size_t kind = 0; kind < difference.size(); ++kind) difference[kind] -= second.by_kind[kind];
  const double overlapped =
      (first.overlaps ? first.seconds : 0) - (second.overlaps ? second.seconds : 0);
  const Spread spread = SpreadOf(difference, overlapped, costs);
  const double middle = first.seconds - second.seconds + spread.middle;
  return {.low = middle - spread.half, .high = middle + spread.half};
}

}  // namespace convene::cost
