// Whether the order of a schedule is enough: of two tasks that touch the same thing, one of them
// writing, one must come before the other by lanes and dependencies, whatever the times.
#pragma once

#include "base/result.h"
#include "schedule/schedule.h"

namespace convene::schedule {

// Errors name two tasks that touch the same thing (task_table.h) in no order. Order through other
// ranks does not count, so that each rank's tasks may be checked alone. Precondition: Validate has
// no error. Linear in tasks, what they touch, and lanes.
Status CheckHazards(const Schedule& schedule);

}  // namespace convene::schedule
