// The passes that divide the work of a step, so that one part computes while another exchanges: in
// chunks of the experts' work, and in micro-batches. The other passes are search_passes.cc.
#pragma once

#include "planner/plan_search.h"

namespace convene::planner {

// What it would take at least, were all exchanges hidden or of no bytes: tasks that wait for each
// other remain. Precondition: it has figures.
double LeastScore(const Candidate& candidate);

// Leaves those whose pipelines are worth a search.
void PruneByBound(PlanSearch& search);
void AddPipelines(PlanSearch& search);
// Of the fastest with chunks of experts: where these end, by expected work and bytes.
void AddCuts(PlanSearch& search);
// Of each layout with its best pipeline and with none.
void AddMicroBatches(PlanSearch& search);
// Of the fastest whose exchanges run beside experts: with multiprocessors that experts leave to
// them (EPS-MoE, section III-B). Nothing on machines of which it is not known what that costs.
void AddCommBudgets(PlanSearch& search);

// The best of these with whole steps of decode, which read weights once for each part.
void AddWholeDecode(PlanSearch& search);
// Whether that pass may do so with the plan.
bool MayLeaveDecodeWhole(const plan::Plan& plan);
// From how many tokens on it cuts steps of a plan for a batch: more than a step of decode has.
int WholeDecodeFrom(int batch);

}  // namespace convene::planner
