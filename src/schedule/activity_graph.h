// A schedule as the graph of what must be done before what: dependencies, the order of lanes, and
// collectives as one node each. It is what validation, the simulator and the critical path walk.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "schedule/schedule.h"

namespace convene::schedule {

// An activity is a task, or all tasks of a collective: they start together and end together.
// Activities are numbered in the order of their first tasks.
struct ActivityGraph {
  std::vector<int32_t> activity_of;  // by TaskId
  std::vector<int32_t> first_task;   // by activity, and one more: where its tasks begin in `tasks`
  std::vector<TaskId> tasks;
  std::vector<int32_t> first_next;  // by activity, and one more: where they begin in `next`
  std::vector<int32_t> next;        // activities that wait for this one; may name one repeatedly
  std::vector<int32_t> num_before;  // by activity: how often it is named in `next`

  int num_activities() const { return static_cast<int>(num_before.size()); }
  std::span<const TaskId> tasks_of(int activity) const {
    return std::span(tasks).subspan(first_task[activity],
                                    first_task[activity + 1] - first_task[activity]);
  }
  std::span<const int32_t> next_of(int activity) const {
    return std::span(next).subspan(first_next[activity],
                                   first_next[activity + 1] - first_next[activity]);
  }
};

// Precondition: ranks, lanes and dependencies are there (Validate finds more). Linear in tasks and
// dependencies.
ActivityGraph BuildActivityGraph(const Schedule& schedule);

// Of each task the one before it on its lane; -1: none. Precondition as above.
std::vector<TaskId> PreviousOnLane(const Schedule& schedule);

}  // namespace convene::schedule
