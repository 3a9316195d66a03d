// What measurements and tests change in a step: the one place where they enter. Production sets
// none of it.
#pragma once

#include <functional>

#include "base/result.h"
#include "runtime/router_override.h"
#include "schedule/schedule.h"

namespace convene::runtime {

struct Experiment {
  RouterOverride router = {};
  // Above 0: experts are padded to a capacity, a baseline to compare with (device/expert_rows.h).
  double capacity_factor = 0;
  // Called before each task of this rank; an error takes the place of what the task does. From
  // several threads, one task at a time on each.
  std::function<Status(const schedule::Task& task)> before_task = {};
};

}  // namespace convene::runtime
