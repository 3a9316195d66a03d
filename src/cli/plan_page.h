// A plan as one page that stands alone: what was foreseen, the alternatives with their reasons,
// what each would lose at other batches, and a step of each phase as a Gantt chart. HTML with
// pictures in it; it needs no network and runs no script.
#pragma once

#include <string>
#include <vector>

#include "base/result.h"
#include "cli/plan_report.h"
#include "drawing/trace.h"

namespace convene::cli {

// A step of few of the model's layers, ready to be drawn. Errors: as PlanSearch::DrawStep.
Result<drawing::TracedStep> PictureOf(planner::PlanSearch& search,
                                      const planner::Candidate& candidate, strategy::Phase phase,
                                      const std::string& profile);

std::string PlanPage(const PlanReport& report, const std::vector<drawing::TracedStep>& steps);

}  // namespace convene::cli
