// When each task of a schedule ran or is predicted to run, and what follows from that: idle time,
// overlap, the critical path. Where the times come from is simulate/ and runtime/.
#pragma once

#include <vector>

#include "schedule/schedule.h"

namespace convene::schedule {

// Seconds from the start of the step. A task that did not run has end < start.
struct TaskTime {
  double start = 0;
  double end = -1;

  double seconds() const { return end < start ? 0 : end - start; }
};

struct Timeline {
  std::vector<TaskTime> tasks;  // by TaskId

  double seconds() const;  // until the last task has ended
};

}  // namespace convene::schedule
