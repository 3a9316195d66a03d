// A plan as one page that stands alone: what was foreseen, the alternatives with their reasons,
// what each would lose at other batches, and a step of each phase as a Gantt chart. HTML with
// pictures in it; it needs no network and runs no script.
#pragma once

#include <string>
#include <vector>

#include "cli/plan_report.h"
#include "drawing/trace.h"

namespace convene::cli {

std::string PlanPage(const PlanReport& report, const std::vector<drawing::TracedStep>& steps);

}  // namespace convene::cli
