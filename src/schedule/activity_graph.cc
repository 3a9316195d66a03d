#include "schedule/activity_graph.h"

#include <algorithm>
#include <unordered_map>

namespace convene::schedule {
namespace {

// Numbers of collectives are small where strategies count them, and anything where tests do not.
class CollectiveActivities {
 public:
  explicit CollectiveActivities(size_t num_tasks) : by_number_(num_tasks, -1) {}

  int32_t& operator[](int collective) {
    const auto idx = static_cast<size_t>(collective);
    return idx < by_number_.size() ? by_number_[idx] : others_.try_emplace(idx, -1).first->second;
  }

 private:
  std::vector<int32_t> by_number_;
  std::unordered_map<size_t, int32_t> others_;
};

int NumberActivities(const Schedule& schedule, ActivityGraph& graph) {
  int num_activities = 0;
  CollectiveActivities collectives(schedule.tasks.size());
  graph.activity_of.reserve(schedule.tasks.size());
  for (const Task& task : schedule.tasks) {
    if (task.collective < 0) {
      graph.activity_of.push_back(num_activities++);
      continue;
    }
    int32_t& activity = collectives[task.collective];
    if (activity < 0) activity = num_activities++;
    graph.activity_of.push_back(activity);
  }
  return num_activities;
}

// Calls visit(before, after) for each edge between activities.
template <typename Visit>
void ForEachEdge(const Schedule& schedule, const std::vector<int32_t>& activity_of,
                 const std::vector<TaskId>& previous, Visit visit) {
  for (size_t id = 0; id < schedule.tasks.size(); ++id) {
    const int32_t activity = activity_of[id];
    if (previous[id] >= 0) visit(activity_of[previous[id]], activity);
    for (const TaskId before : schedule.tasks[id].after) {
      if (before != previous[id]) visit(activity_of[before], activity);
    }
  }
}

void Accumulate(std::vector<int32_t>& counts) {
  int32_t sum = 0;
  for (int32_t& count : counts) sum += std::exchange(count, sum);
}

}  // namespace

std::vector<TaskId> PreviousOnLane(const Schedule& schedule) {
  std::vector<TaskId> last(static_cast<size_t>(schedule.num_ranks) * kNumLaneKinds, -1);
  std::vector<TaskId> previous;
  previous.reserve(schedule.tasks.size());
  for (size_t id = 0; id < schedule.tasks.size(); ++id) {
    const Lane& lane = schedule.tasks[id].lane;
    TaskId& last_on_lane = last[lane.rank * kNumLaneKinds + static_cast<int>(lane.kind)];
    previous.push_back(std::exchange(last_on_lane, static_cast<TaskId>(id)));
  }
  return previous;
}

ActivityGraph BuildActivityGraph(const Schedule& schedule) {
  ActivityGraph graph;
  const int num_activities = NumberActivities(schedule, graph);
  const size_t num_tasks = schedule.tasks.size();

  graph.first_task.assign(num_activities + 1, 0);
  for (const int32_t activity : graph.activity_of) ++graph.first_task[activity];
  Accumulate(graph.first_task);
  graph.tasks.resize(num_tasks);
  std::vector<int32_t> place(graph.first_task.begin(), graph.first_task.end() - 1);
  for (size_t id = 0; id < num_tasks; ++id) {
    graph.tasks[place[graph.activity_of[id]]++] = static_cast<TaskId>(id);
  }

  const std::vector<TaskId> previous = PreviousOnLane(schedule);
  graph.first_next.assign(num_activities + 1, 0);
  graph.num_before.assign(num_activities, 0);
  ForEachEdge(schedule, graph.activity_of, previous, [&](int32_t before, int32_t after) {
    ++graph.first_next[before];
    ++graph.num_before[after];
  });
  Accumulate(graph.first_next);
  graph.next.resize(graph.first_next.back());
  std::copy(graph.first_next.begin(), graph.first_next.end() - 1, place.begin());
  ForEachEdge(schedule, graph.activity_of, previous,
              [&](int32_t before, int32_t after) { graph.next[place[before]++] = after; });
  return graph;
}

}  // namespace convene::schedule
