// The pass that adds plans whose attention and experts are on different ranks, in pipelines that a
// solver proposes (FinDEP; disaggregated_solver.h). The other passes are search_passes.cc.
#pragma once

#include "planner/plan_search.h"

namespace convene::planner {

// Of each number of ranks: so many of them with attention and the others with the experts, which
// are alike or have shares by their rates. For each such layout lines are fitted to the prices of
// its tasks; by them the best layouts are chosen, and of each the turns (naive, PPPipe, fine with
// fixed numbers, and fine with numbers that are solved for each step). What is proposed so is
// priced as all plans are, by simulating the steps' own schedules; a layout that is not says by how
// much the lines have it slower. Of a layout that was asked for, it is the only one; of a pipeline
// or micro-batches that were, these.
void AddDisaggregated(PlanSearch& search);

}  // namespace convene::planner
