// The plan in force planned again for other requests, while a server runs: what may still change
// then. When it is asked for is server/replanner.h.
#pragma once

#include "base/result.h"
#include "cli/model_options.h"
#include "cli/plan_by_default.h"
#include "model/model_spec.h"
#include "plan/plan.h"
#include "planner/plan_question.h"
#include "planner/workload.h"

namespace convene::cli {

// The plan in force for another workload: with the division of the experts in time (chunks and
// their cuts) that is best for it, all else being as it is, so that it computes the same bits. By
// what is kept of the machine; nothing is measured. Errors: the plan stays, and why: it is the best
// or others are not surely better, costs of such ranks are not kept, phases or ranks divide the
// experts in ways of their own.
Result<DefaultPlan> PlanAgain(const ModelOptions& options, const model::ModelSpec& spec,
                              const plan::Plan& in_force, const planner::RankSetup& setup,
                              const planner::Workload& workload);

}  // namespace convene::cli
