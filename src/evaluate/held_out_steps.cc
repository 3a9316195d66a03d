#include "evaluate/held_out_steps.h"

#include <algorithm>
#include <cmath>
#include <set>
#include <vector>

#include "cost/step_interval.h"
#include "schedule/activity_graph.h"
#include "simulate/simulate.h"

namespace convene::evaluate {
namespace {

// Of steps whose errors are to lie in their interval.
constexpr double kInside = 0.9;
// A spread of next to nothing, as where costs were fitted to steps without noise, is not stretched
// without end.
constexpr double kMostStretch = 100;

struct SimulatedStep {
  schedule::Timeline timeline;
  double measured = 0;

  double predicted() const { return timeline.seconds(); }
};

// The round with the median error.
SimulatedStep MedianRound(const cost::SampledStep& step, const cost::StepCosts& costs) {
  const schedule::ActivityGraph graph = schedule::BuildActivityGraph(*step.schedule);
  std::vector<SimulatedStep> rounds;
  for (size_t round = 0; round < step.timelines.size(); ++round) {
    const cost::Prices prices =
        cost::PriceSchedule(*step.schedule, graph, costs, step.sizes, step.states[round]);
    rounds.push_back({.timeline = simulate::Simulate(*step.schedule, graph, prices),
                      .measured = step.timelines[round].seconds()});
  }
  std::ranges::sort(rounds, {},
                    [](const SimulatedStep& each) { return each.measured / each.predicted(); });
  return rounds[rounds.size() / 2];
}

// Those of the other models, and of `costs` what no other model has.
cost::StepCosts CostsWithout(int model, std::span<const cost::SampledStep> steps,
                             const cost::StepCosts& costs) {
  std::vector<cost::SampledStep> others;
  for (const cost::SampledStep& step : steps) {
    if (step.model != model && !step.is_special()) others.push_back(step);
  }
  cost::StepCosts fitted = cost::FitStepCosts(
      others, costs.reference,
      {.unevenness = costs.exchange.unevenness, .validates = false, .sensitivities_of = &costs});
  for (size_t kind = 0; kind < fitted.tasks.size(); ++kind) {
    if (!fitted.tasks[kind]) fitted.tasks[kind] = costs.tasks[kind];
  }
  if (std::ranges::none_of(others, &cost::SampledStep::overlaps)) {
    fitted.exchange.core_seconds_per_byte = costs.exchange.core_seconds_per_byte;
  }
  fitted.num_ranks = costs.num_ranks;
  fitted.num_threads = costs.num_threads;
  fitted.copy_bytes_per_second = costs.copy_bytes_per_second;
  return fitted;
}

// By how much the step's interval has to be stretched to have what was measured at its end.
double StretchOf(const cost::SampledStep& step, const cost::StepCosts& costs,
                 const cost::StepErrors& errors) {
  const SimulatedStep simulated = MedianRound(step, costs);
  const double predicted = simulated.predicted();
  const double spread =
      cost::IntervalOf(
          {.seconds = predicted,
           .by_kind = cost::SecondsOnPath(*step.schedule, simulated.timeline),
           .overlapped_seconds = cost::Overlaps(*step.schedule) ? predicted : 0,
           .extrapolated_share = cost::ExtrapolatedShare(*step.schedule, costs, step.sizes)},
          errors)
          .high -
      predicted;
  const double ratio = simulated.measured / predicted;
  return (std::max(ratio, 1 / ratio) - 1) * predicted / std::max(spread, 1e-9 * predicted);
}

}  // namespace

std::optional<cost::HeldOut> TryOnOverlapped(std::span<const cost::SampledStep> steps,
                                             const cost::StepCosts& costs) {
  std::vector<cost::PredictedSample> samples;
  for (const cost::SampledStep& step : steps) {
    if (!step.overlaps) continue;
    cost::StepCosts of_others = costs;
    of_others.exchange.core_seconds_per_byte = cost::CoreSecondsPerByte(steps, costs, &step);
    const SimulatedStep simulated = MedianRound(step, of_others);
    samples.push_back({simulated.predicted(), simulated.measured});
  }
  if (samples.empty()) return std::nullopt;
  return cost::HeldOutOf(samples);
}

double IntervalStretch(std::span<const cost::SampledStep> steps, const cost::StepCosts& costs) {
  std::set<int> models;
  for (const cost::SampledStep& step : steps) models.insert(step.model);
  if (models.size() < 2) return 1;
  cost::StepErrors errors = cost::ErrorsOf(costs);
  errors.stretch = 1;
  std::vector<double> stretches;
  for (const int model : models) {
    const cost::StepCosts of_others = CostsWithout(model, steps, costs);
    for (const cost::SampledStep& step : steps) {
      if (step.model == model && !step.is_special())
        stretches.push_back(StretchOf(step, of_others, errors));
    }
  }
  std::ranges::sort(stretches);
  // One more step than there are is the one that will be predicted.
  const auto inside =
      static_cast<size_t>(std::ceil(kInside * static_cast<double>(stretches.size() + 1)));
  return std::min(stretches[std::min(inside, stretches.size()) - 1], kMostStretch);
}

}  // namespace convene::evaluate
