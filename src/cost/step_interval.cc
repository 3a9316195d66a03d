#include "cost/step_interval.h"

#include <algorithm>
#include <cmath>
#include <optional>

#include "cost/measured_kind.h"

namespace convene::cost {
namespace {

double Widest(const std::optional<ErrorRange>& error) {
  return error ? std::max(std::abs(error->low), std::abs(error->high)) : 0;
}

// How far the seconds may be from what is predicted, in either direction.
double SpreadOf(const KindSeconds& seconds, double overlapped, const StepErrors& errors) {
  double squares = std::pow(overlapped * Widest(errors.overlapped), 2);
  double exchanging = 0;
  KindSeconds measured = {};
  for (size_t kind = 0; kind < seconds.size(); ++kind) {
    const auto task = static_cast<schedule::TaskKind>(kind);
    (IsCollective(task) ? exchanging : measured[static_cast<size_t>(MeasuredAs(task))]) +=
        seconds[kind];
  }
  for (size_t kind = 0; kind < measured.size(); ++kind) {
    squares += std::pow(measured[kind] * Widest(errors.by_kind[kind]), 2);
  }
  return std::sqrt(squares + std::pow(exchanging * Widest(errors.exchanges), 2));
}

}  // namespace

KindSeconds SecondsOnPath(const schedule::Schedule& schedule, const schedule::Timeline& timeline) {
  KindSeconds seconds = {};
  for (const schedule::TaskId id : CriticalPath(schedule, timeline)) {
    seconds[static_cast<size_t>(schedule.tasks[id].kind)] += timeline.tasks[id].seconds();
  }
  return seconds;
}

StepErrors ErrorsOf(const StepCosts& costs) {
  const auto range = [](const std::optional<HeldOut>& held_out) -> std::optional<ErrorRange> {
    if (!held_out) return std::nullopt;
    return ErrorRange{.low = held_out->low, .high = held_out->high};
  };
  StepErrors errors{.exchanges = range(costs.exchange_held_out),
                    .overlapped = range(costs.overlapped_held_out),
                    .stretch = costs.interval_stretch};
  for (size_t kind = 0; kind < errors.by_kind.size(); ++kind) {
    errors.by_kind[kind] = range(costs.held_out[kind]);
  }
  return errors;
}

StepErrors WithUsualErrors(StepErrors errors) {
  const ErrorRange usual = {.low = -kUsualError, .high = kUsualError};
  for (std::optional<ErrorRange>& kind : errors.by_kind) kind = kind.value_or(usual);
  errors.exchanges = errors.exchanges.value_or(usual);
  errors.overlapped = errors.overlapped.value_or(usual);
  return errors;
}

Interval IntervalOf(const Outline& step, const StepErrors& errors) {
  const double spread = SpreadOf(step.by_kind, step.overlapped_seconds, errors) * errors.stretch *
                        (1 + step.extrapolated_share);
  const double high = step.seconds + spread;
  // As many times shorter as it may be longer: no step takes nothing.
  return {.low = high > 0 ? step.seconds * step.seconds / high : 0, .high = high};
}

namespace {

double SpreadOfDifference(const Outline& first, const Outline& second, const StepErrors& errors) {
  KindSeconds difference = first.by_kind;
  for (size_t kind = 0; kind < difference.size(); ++kind) difference[kind] -= second.by_kind[kind];
  return SpreadOf(difference, first.overlapped_seconds - second.overlapped_seconds, errors);
}

}  // namespace

Interval IntervalOfDifference(const Outline& first, const Outline& second,
                              const StepErrors& errors) {
  const double spread = SpreadOfDifference(first, second, WithUsualErrors(errors));
  const double seconds = first.seconds - second.seconds;
  return {.low = seconds - spread, .high = seconds + spread};
}

bool HasUsualErrors(const Outline& first, const Outline& second, const StepErrors& errors) {
  return SpreadOfDifference(first, second, errors) <
         SpreadOfDifference(first, second, WithUsualErrors(errors));
}

bool SurelyTakesLonger(const Outline& first, const Outline& second, const StepErrors& errors) {
  return first.seconds >= kLeastGain * second.seconds &&
         IntervalOfDifference(first, second, errors).low > 0;
}

}  // namespace convene::cost
