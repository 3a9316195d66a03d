#include "bench/step_prediction.h"

#include <algorithm>

#include "base/check.h"
#include "planner/step_pricer.h"
#include "schedule/timeline.h"

namespace convene::bench {
namespace {

std::map<std::string, double> SecondsOfKinds(const planner::PredictedStep& step) {
  const std::vector<schedule::TaskTime> waits =
      schedule::WaitingTimes(step.schedule, step.timeline);
  std::map<std::string, double> seconds;
  for (size_t task = 0; task < step.schedule.tasks.size(); ++task) {
    const double spent = step.timeline.tasks[task].seconds() - std::max(0.0, waits[task].seconds());
    if (spent > 0) {
      seconds[std::string(schedule::Name(step.schedule.tasks[task].kind))] +=
          spent / step.schedule.num_ranks;
    }
  }
  return seconds;
}

}  // namespace

Result<StepPrediction> PredictStepOfCosts(const planner::StepQuestion& question,
                                          const cost::StepCosts& costs) {
  const auto predict = [&](const cost::MachineState& state) {
    return planner::PredictStep(question, planner::MeasuredPricer(costs, state));
  };
  const Result<planner::PredictedStep> predicted = predict({});
  if (!predicted) return predicted.error();
  constexpr double kSlower = 0.1;
  const Result<planner::PredictedStep> memory = predict({.memory = 1 + kSlower});
  const Result<planner::PredictedStep> compute = predict({.compute = 1 + kSlower});
  CHECK(memory && compute, "the same step");
  return StepPrediction{
      .seconds = predicted->seconds,
      .interval = cost::IntervalOf(planner::OutlineOf(*predicted), cost::ErrorsOf(costs)),
      .memory_seconds = (memory->seconds - predicted->seconds) / kSlower,
      .compute_seconds = (compute->seconds - predicted->seconds) / kSlower,
      .extrapolated_share = predicted->extrapolated_share,
      .reference = costs.reference,
      .seconds_of_kinds = SecondsOfKinds(*predicted)};
}

nlohmann::ordered_json ToJson(const StepPrediction& prediction) {
  return {{"predicted_s", prediction.seconds},
          {"low_s", prediction.interval.low},
          {"high_s", prediction.interval.high},
          {"memory_s", prediction.memory_seconds},
          {"compute_s", prediction.compute_seconds},
          {"extrapolated", prediction.extrapolated_share},
          {"read_bytes_per_s", prediction.reference.read_bytes_per_second},
          {"dot_operations_per_s", prediction.reference.dot_operations_per_second},
          {"seconds_of_kinds", prediction.seconds_of_kinds}};
}

}  // namespace convene::bench
