#include "drawing/select_layers.h"

#include <algorithm>
#include <limits>

namespace convene::drawing {
namespace {

using schedule::Task;
using schedule::TaskId;
using schedule::Timeline;

Timeline Select(const Timeline& timeline, const std::vector<TaskId>& chosen) {
  Timeline selected;
  if (timeline.tasks.empty()) return selected;
  double begin = std::numeric_limits<double>::infinity();
  for (const TaskId id : chosen) {
    const schedule::TaskTime& time = selected.tasks.emplace_back(timeline.tasks[id]);
    if (time.end >= time.start) begin = std::min(begin, time.start);
  }
  for (schedule::TaskTime& time : selected.tasks) {
    if (time.end < time.start) continue;
    time.start -= begin;
    time.end -= begin;
  }
  return selected;
}

}  // namespace

TracedStep SelectLayers(const TracedStep& step, int first, int last) {
  TracedStep selected = {.name = step.name, .start = step.start, .predicted_by = step.predicted_by};
  selected.schedule.num_ranks = step.schedule.num_ranks;
  std::vector<TaskId> chosen;
  std::vector<TaskId> new_id(step.schedule.tasks.size(), -1);
  for (size_t id = 0; id < step.schedule.tasks.size(); ++id) {
    const Task& task = step.schedule.tasks[id];
    if (task.layer < first || task.layer > last) continue;
    new_id[id] = static_cast<TaskId>(chosen.size());
    chosen.push_back(static_cast<TaskId>(id));
  }
  for (const TaskId id : chosen) {
    Task& task = selected.schedule.tasks.emplace_back(step.schedule.tasks[id]);
    std::erase_if(task.after, [&](TaskId before) { return new_id[before] < 0; });
    for (TaskId& before : task.after) before = new_id[before];
  }
  selected.measured = Select(step.measured, chosen);
  selected.predicted = Select(step.predicted, chosen);
  return selected;
}

int NumLayers(const schedule::Schedule& schedule) {
  int most = -1;
  for (const Task& task : schedule.tasks) most = std::max(most, task.layer);
  return most + 1;
}

}  // namespace convene::drawing
