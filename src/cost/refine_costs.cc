#include "cost/refine_costs.h"

#include <algorithm>
#include <cmath>

#include "cost/fit_step_costs.h"
#include "cost/measured_kind.h"
#include "schedule/activity_graph.h"

namespace convene::cost {
namespace {

using schedule::TaskId;

struct Sample {
  double predicted = 0;
  double measured = 0;
  int step = 0;
};

// Of half of the seconds that were predicted, tasks took longer by more than this factor: those
// that somebody disturbed count no more than others.
double MedianFactor(std::vector<Sample> samples) {
  std::ranges::sort(samples, {}, [](const Sample& each) { return each.measured / each.predicted; });
  double all = 0;
  for (const Sample& each : samples) all += each.predicted;
  double below = 0;
  for (const Sample& each : samples) {
    below += each.predicted;
    if (below >= all / 2) return each.measured / each.predicted;
  }
  return 1;
}

double MeanError(std::span<const Sample> samples, double factor) {
  double sum = 0;
  double all = 0;
  for (const Sample& each : samples) {
    sum += std::abs(factor * each.predicted - each.measured);
    all += each.measured;
  }
  return all > 0 ? sum / all : 0;
}

std::optional<KindRefinement> RefinementOf(const std::vector<Sample>& samples, int num_steps) {
  if (samples.empty()) return std::nullopt;
  KindRefinement found{.num_tasks = static_cast<int>(samples.size()),
                       .factor = MedianFactor(samples),
                       .error_before = MeanError(samples, 1)};
  double all = 0;
  for (int step = 0; step < num_steps; ++step) {
    std::vector<Sample> own;
    std::vector<Sample> others;
    for (const Sample& each : samples) (each.step == step ? own : others).push_back(each);
    if (own.empty()) continue;
    double seconds = 0;
    for (const Sample& each : own) seconds += each.measured;
    found.error_after += seconds * MeanError(own, MedianFactor(others.empty() ? own : others));
    all += seconds;
  }
  found.error_after /= all;
  found.is_used = found.num_tasks >= kFewestRefiningTasks && found.error_after < found.error_before;
  return found;
}

double MostWeightBytes(std::span<const TracedCosts> steps) {
  double most = 0;
  for (const TracedCosts& step : steps) {
    double all = 0;
    for (const TaskParts& parts : step.parts) all += parts.weight_bytes;
    most = std::max(most, all);
  }
  return most;
}

void Multiply(Curve& curve, double factor) {
  for (double& value : curve.value) value *= factor;
}

void Multiply(TaskCost& cost, double factor) {
  for (double* member : {&cost.once, &cost.per_group, &cost.per_row_byte}) *member *= factor;
  Multiply(cost.per_weight_byte, factor);
  Multiply(cost.per_score, factor);
}

}  // namespace

Refinement RefineStepCosts(StepCosts costs, std::span<const TracedCosts> steps,
                           uint64_t cache_bytes) {
  Refinement refinement;
  refinement.fits_caches =
      cache_bytes > 0 && MostWeightBytes(steps) <= static_cast<double>(cache_bytes);
  std::array<std::vector<Sample>, schedule::kNumTaskKinds> tasks;
  std::vector<Sample> exchanges;
  const auto add = [](std::vector<Sample>& to, double predicted, double measured, size_t step) {
    if (predicted > 0 && measured >= kLeastTaskSeconds) {
      to.push_back({predicted, measured, static_cast<int>(step)});
    }
  };
  for (size_t i = 0; i < steps.size(); ++i) {
    const schedule::Schedule& schedule = *steps[i].schedule;
    CHECK(schedule.num_ranks == costs.num_ranks && steps[i].parts.size() == schedule.tasks.size());
    const bool overlaps = Overlaps(schedule);
    const schedule::ActivityGraph graph = schedule::BuildActivityGraph(schedule);
    for (int activity = 0; activity < graph.num_activities(); ++activity) {
      const std::span<const TaskId> ids = graph.tasks_of(activity);
      const schedule::Task& task = schedule.tasks[ids.front()];
      const double seconds = CollectiveSeconds(*steps[i].timeline, ids);
      if (IsCollective(task.kind)) {
        std::vector<double> sent;
        for (const TaskId id : ids) sent.push_back(steps[i].parts[id].link_bytes);
        if (!overlaps && !HasComputationBeside(schedule, *steps[i].timeline, ids)) {
          add(exchanges,
              costs.ExchangeSeconds(task.kind, BytesOfSenders(sent, costs.num_ranks),
                                    steps[i].state),
              seconds, i);
        }
      } else if (const auto& cost = costs.CostOf(task.kind);
                 cost && !overlaps && !LoadsBeside(task) && !refinement.fits_caches) {
        // Beside exchanges it takes longer, and prices say by how much already.
        add(tasks[static_cast<size_t>(MeasuredAs(task.kind))],
            costs.TaskSeconds(*cost, task.lane.rank, steps[i].parts[ids.front()], steps[i].state),
            seconds, i);
      }
    }
  }
  const auto num_steps = static_cast<int>(steps.size());
  for (size_t kind = 0; kind < tasks.size(); ++kind) {
    auto& found = refinement.tasks[kind] = RefinementOf(tasks[kind], num_steps);
    if (found && found->is_used) Multiply(*costs.tasks[kind], found->factor);
  }
  auto& exchange = refinement.exchange = RefinementOf(exchanges, num_steps);
  if (exchange && exchange->is_used) Multiply(costs.exchange.seconds, exchange->factor);
  refinement.costs = std::move(costs);
  return refinement;
}

}  // namespace convene::cost
