// Validate: what a strategy may have got wrong, found before anything waits for ever.
#include <fmt/format.h>

#include <algorithm>

#include "schedule/activity_graph.h"
#include "schedule/schedule.h"

namespace convene::schedule {
namespace {

std::string Describe(const Schedule& schedule, TaskId id) {
  const Task& task = schedule.tasks[id];
  return fmt::format("task {} (r{} {})", id, task.lane.rank, Label(task));
}

// What must hold before the graph can be built.
Status ValidateTasks(const Schedule& schedule) {
  if (schedule.num_ranks < 1) {
    return Error{fmt::format("a schedule has at least 1 rank, not {}", schedule.num_ranks)};
  }
  const auto num_tasks = static_cast<TaskId>(schedule.tasks.size());
  for (TaskId id = 0; id < num_tasks; ++id) {
    const Task& task = schedule.tasks[id];
    const int kind = static_cast<int>(task.kind);
    const int lane = static_cast<int>(task.lane.kind);
    if (kind < 0 || kind >= kNumTaskKinds || lane < 0 || lane >= kNumLaneKinds) {
      return Error{
          fmt::format("task {} is of kind {} on lane {}, which are not there", id, kind, lane)};
    }
    if (task.lane.rank < 0 || task.lane.rank >= schedule.num_ranks) {
      return Error{fmt::format("{} is on rank {} of {}", Describe(schedule, id), task.lane.rank,
                               schedule.num_ranks)};
    }
    for (const TaskId before : task.after) {
      if (before < 0 || before >= num_tasks) {
        return Error{
            fmt::format("{} waits for task {} of {}", Describe(schedule, id), before, num_tasks)};
      }
      if (before >= id && schedule.tasks[before].lane.rank == task.lane.rank) {
        return Error{fmt::format("{} waits for {}, which its rank lists later: list it before",
                                 Describe(schedule, id), Describe(schedule, before))};
      }
    }
    if (IsCollective(task.kind) != (task.collective >= 0)) {
      return Error{fmt::format(
          "{} has collective number {}: only collective kinds have one, and all of them",
          Describe(schedule, id), task.collective)};
    }
  }
  return {};
}

Status ValidateCollectives(const Schedule& schedule, const ActivityGraph& graph) {
  std::vector<TaskId> last_of_rank(schedule.num_ranks, -1);
  for (int activity = 0; activity < graph.num_activities(); ++activity) {
    const std::span<const TaskId> tasks = graph.tasks_of(activity);
    const Task& first = schedule.tasks[tasks.front()];
    for (const TaskId id : tasks) {
      const Task& task = schedule.tasks[id];
      if (task.kind != first.kind || task.lane.kind != first.lane.kind) {
        return Error{fmt::format("collective {} is {} on lane {}, and {} on lane {}",
                                 task.collective, Describe(schedule, tasks.front()),
                                 Name(first.lane.kind), Describe(schedule, id),
                                 Name(task.lane.kind))};
      }
      TaskId& last = last_of_rank[task.lane.rank];
      // Tasks of a collective are numbered upwards, so an older entry is below its first task or
      // of another collective.
      if (last >= 0 && graph.activity_of[last] == activity) {
        return Error{fmt::format("rank {} enters collective {} twice: {} and {}", task.lane.rank,
                                 task.collective, Describe(schedule, last),
                                 Describe(schedule, id))};
      }
      last = id;
    }
  }
  return {};
}

// The two collectives a and b, if two ranks have them on one lane in different orders.
Status ValidateOrder(const Schedule& schedule, const ActivityGraph& graph, int a, int b) {
  TaskId first_a = -1;
  TaskId first_b = -1;
  for (const TaskId of_a : graph.tasks_of(a)) {
    for (const TaskId of_b : graph.tasks_of(b)) {
      if (schedule.tasks[of_a].lane != schedule.tasks[of_b].lane) continue;
      (of_a < of_b ? first_a : first_b) = of_a;
    }
  }
  if (first_a < 0 || first_b < 0) return {};
  return Error{fmt::format(
      "ranks {} and {} enter collectives {} ({}) and {} ({}) of lane {} in different orders",
      schedule.tasks[first_a].lane.rank, schedule.tasks[first_b].lane.rank,
      schedule.tasks[first_a].collective, Label(schedule.tasks[first_a]),
      schedule.tasks[graph.tasks_of(b).front()].collective,
      Label(schedule.tasks[graph.tasks_of(b).front()]), Name(schedule.tasks[first_a].lane.kind))};
}

// Activities of a cycle among those that are still waiting, each before the next.
std::vector<int> FindCycle(const ActivityGraph& graph, const std::vector<int32_t>& waits) {
  const int num_activities = graph.num_activities();
  std::vector<int> before(num_activities, -1);  // one that it waits for and that waits itself
  for (int activity = 0; activity < num_activities; ++activity) {
    if (waits[activity] == 0) continue;
    for (const int next : graph.next_of(activity)) before[next] = activity;
  }
  int at = 0;
  while (waits[at] == 0) ++at;
  std::vector<bool> seen(num_activities, false);
  while (!seen[at]) {
    seen[at] = true;
    at = before[at];
  }
  std::vector<int> cycle = {at};
  for (int i = before[at]; i != at; i = before[i]) cycle.push_back(i);
  std::reverse(cycle.begin(), cycle.end());
  return cycle;
}

Status ValidateNoCycle(const Schedule& schedule, const ActivityGraph& graph) {
  std::vector<int32_t> waits = graph.num_before;
  std::vector<int> ready;
  for (int activity = 0; activity < graph.num_activities(); ++activity) {
    if (waits[activity] == 0) ready.push_back(activity);
  }
  size_t num_done = 0;
  for (; num_done < ready.size(); ++num_done) {
    for (const int next : graph.next_of(ready[num_done])) {
      if (--waits[next] == 0) ready.push_back(next);
    }
  }
  if (num_done == waits.size()) return {};

  const std::vector<int> cycle = FindCycle(graph, waits);
  for (size_t i = 0; i < cycle.size(); ++i) {
    Status order = ValidateOrder(schedule, graph, cycle[i], cycle[(i + 1) % cycle.size()]);
    if (!order.ok()) return order;
  }
  constexpr size_t kMaxNamed = 8;
  std::string path;
  for (size_t i = 0; i < std::min(cycle.size(), kMaxNamed); ++i) {
    path += Describe(schedule, graph.tasks_of(cycle[i]).front()) + ", ";
  }
  if (cycle.size() > kMaxNamed) path += fmt::format("{} more, ", cycle.size() - kMaxNamed);
  return Error{fmt::format("each of these waits for the one before it: {}and again {}", path,
                           Describe(schedule, graph.tasks_of(cycle.front()).front()))};
}

}  // namespace

Status Validate(const Schedule& schedule) {
  if (Status tasks = ValidateTasks(schedule); !tasks.ok()) return tasks;
  const ActivityGraph graph = BuildActivityGraph(schedule);
  if (Status collectives = ValidateCollectives(schedule, graph); !collectives.ok()) {
    return collectives;
  }
  return ValidateNoCycle(schedule, graph);
}

}  // namespace convene::schedule
