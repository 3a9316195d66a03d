#include "cost/calibrate.h"

#include <algorithm>
#include <vector>

#include "cost/prices.h"
#include "schedule/activity_graph.h"

namespace convene::cost {
namespace {

struct Samples {
  std::array<std::vector<Point>, kNumRegressors> by_regressor;
};

// Seconds of an activity; below 0: a task of it did not run.
double MeasuredSeconds(const schedule::Timeline& timeline,
                       std::span<const schedule::TaskId> tasks) {
  double start = timeline.tasks[tasks.front()].start;
  double end = timeline.tasks[tasks.front()].end;
  for (const schedule::TaskId id : tasks) {
    const schedule::TaskTime& time = timeline.tasks[id];
    if (time.end < time.start) return -1;
    start = std::max(start, time.start);
    end = std::min(end, time.end);
  }
  return std::max(0.0, end - start);
}

void AddSamples(const MeasuredStep& step, std::array<Samples, schedule::kNumTaskKinds>& samples) {
  CHECK(step.timeline->tasks.size() == step.schedule->tasks.size());
  const schedule::ActivityGraph graph = schedule::BuildActivityGraph(*step.schedule);
  for (int activity = 0; activity < graph.num_activities(); ++activity) {
    const std::span<const schedule::TaskId> tasks = graph.tasks_of(activity);
    const double seconds = MeasuredSeconds(*step.timeline, tasks);
    if (seconds < 0) continue;
    const schedule::TaskKind kind = step.schedule->tasks[tasks.front()].kind;
    for (int i = 0; i < kNumRegressors; ++i) {
      const double x = RegressorValue(*step.schedule, tasks, static_cast<Regressor>(i), step.sizes);
      samples[static_cast<size_t>(kind)].by_regressor[i].push_back({x, seconds});
    }
  }
}

}  // namespace

KindFits Calibrate(std::span<const MeasuredStep> steps) {
  std::array<Samples, schedule::kNumTaskKinds> samples;
  for (const MeasuredStep& step : steps) AddSamples(step, samples);
  KindFits fits;
  for (int kind = 0; kind < schedule::kNumTaskKinds; ++kind) {
    for (int i = 0; i < kNumRegressors; ++i) {
      const std::vector<Point>& points = samples[kind].by_regressor[i];
      if (points.empty()) continue;
      const KindFit candidate = {static_cast<Regressor>(i), FitLinear(points)};
      // A regressor that is 0 throughout explains nothing, however constant the times are.
      const bool says_something = candidate.fit.x_max > 0;
      const bool current = fits[kind] && fits[kind]->fit.x_max > 0;
      if (!fits[kind] || (says_something && !current) ||
          (says_something && candidate.fit.r2 > fits[kind]->fit.r2)) {
        fits[kind] = candidate;
      }
    }
  }
  return fits;
}

void UseFits(const KindFits& fits, Rates& rates) {
  for (int kind = 0; kind < schedule::kNumTaskKinds; ++kind) {
    if (!fits[kind]) continue;
    rates.measured[kind] = {
        .alpha = fits[kind]->fit.alpha, .beta = fits[kind]->fit.beta, .over = fits[kind]->over};
  }
}

}  // namespace convene::cost
