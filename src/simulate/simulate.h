// When the tasks of a schedule will run at given prices: exact in time, by events. It chooses
// nothing: order is the schedule's, cost is cost/.
#pragma once

#include "cost/prices.h"
#include "schedule/timeline.h"

namespace convene::simulate {

// An activity (a task, or a collective with all its ranks) starts when those before it on its lanes
// and those that it waits for have ended. Its fixed seconds pass whatever else runs; then it works
// off all its demands together, as fast as its share of what it asks for allows (fair_shares.h).
// The tasks of a collective have the same times. Precondition: Validate(schedule) and the graph and
// prices are of it.
schedule::Timeline Simulate(const schedule::Schedule& schedule,
                            const schedule::ActivityGraph& graph, const cost::Prices& prices);

schedule::Timeline Simulate(const schedule::Schedule& schedule, const cost::Rates& rates,
                            const cost::Sizes& sizes);

}  // namespace convene::simulate
