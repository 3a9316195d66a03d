// When each task of a schedule ran or is predicted to run, and what follows from that: idle time,
// overlap, the critical path. Where the times come from is simulate/ and runtime/.
#pragma once

#include <array>
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

// Everything below expects a time for each task of the schedule.

// Per rank the share of the whole time in which none of its tasks computes (anything but
// communication, on any lane).
std::vector<double> IdleShares(const Schedule& schedule, const Timeline& timeline);

// Per rank the share of the time with communication in which the rank also computes; 0 without
// communication. The time of a measured collective includes waiting for the others.
std::vector<double> OverlapShares(const Schedule& schedule, const Timeline& timeline);

// Of each task of a collective the time in which another rank had yet to come to it; of other tasks
// none (end < start).
std::vector<TaskTime> WaitingTimes(const Schedule& schedule, const Timeline& timeline);

// Per rank the share of the whole time in which it computes nothing since it waits for another rank
// to come to a collective: what uneven work costs, without the time that data take.
std::vector<double> WaitingShares(const Schedule& schedule, const Timeline& timeline);

// Per rank the seconds of its tasks by TaskKind.
std::vector<std::array<double, kNumTaskKinds>> SecondsByKind(const Schedule& schedule,
                                                             const Timeline& timeline);

// From the first task to the one that ended last: each is what the next one waited for, of several
// the one that ended last. Of a collective it has the task of the rank that came last.
std::vector<TaskId> CriticalPath(const Schedule& schedule, const Timeline& timeline);

}  // namespace convene::schedule
