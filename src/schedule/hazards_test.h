// Whether a schedule's dependencies are what the checker of hazards needs, and no more.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <vector>

#include "schedule/hazards.h"

namespace convene::schedule {

// Whether `task` comes after `before` by lanes and by what tasks of its rank wait for.
inline bool IsOrdered(const Schedule& schedule, TaskId before, TaskId task) {
  std::vector<bool> is_after(schedule.tasks.size(), false);
  is_after[before] = true;
  std::vector<Lane> lanes;  // with a task after it
  for (auto id = before; id <= task; ++id) {
    const Task& here = schedule.tasks[id];
    const auto waits_for = [&](TaskId other) { return is_after[other]; };
    if (std::any_of(here.after.begin(), here.after.end(), waits_for) ||
        std::find(lanes.begin(), lanes.end(), here.lane) != lanes.end()) {
      is_after[id] = true;
    }
    if (is_after[id]) lanes.push_back(here.lane);
  }
  return is_after[task];
}

// Takes each dependency out in turn: either the checker finds that it is missing, or the rest
// implies it. Returns how many it has found.
inline int CountDependenciesFound(Schedule& schedule) {
  int num_found = 0;
  for (TaskId id = 0; id < std::ssize(schedule.tasks); ++id) {
    std::vector<TaskId>& others = schedule.tasks[id].after;
    const std::vector<TaskId> after = others;
    for (size_t i = 0; i < after.size(); ++i) {
      others.erase(others.begin() + static_cast<std::ptrdiff_t>(i));
      const bool is_found = !CheckHazards(schedule).ok();
      num_found += is_found;
      EXPECT_NE(is_found, IsOrdered(schedule, after[i], id))
          << Label(schedule.tasks[id]) << " after " << Label(schedule.tasks[after[i]]);
      others = after;
    }
  }
  return num_found;
}

}  // namespace convene::schedule
