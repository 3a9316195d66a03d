// A schedule's prices on a machine of whose operators there are models, or a data sheet alone: what
// its tasks ask of devices, links and the disk. What an operator takes is operator_costs.h.
#pragma once

#include "cost/operator_costs.h"
#include "cost/prices.h"
#include "cost/sizes.h"
#include "schedule/activity_graph.h"

namespace convene::cost {

struct OperatorPrices {
  Prices prices;
  // Of the seconds of tasks, exchanges among them, what lies at sizes beyond those measured.
  double extrapolated_share = 0;
};

// Each task takes its rank's device for its seconds. An exchange starts after its fixed seconds and
// the latencies of the levels that it crosses, and then takes the links of each level for its
// bytes, and so many multiprocessors of its ranks' devices: where it runs beside computation that
// leaves it fewer, both are slower (EPS-MoE, section V-B3). Where it may leave out the links of an
// inner level (ExchangeLevels::first_levels), or be carried by other kernels (exchange_costs.h), it
// takes the shorter way; but where the plan says how many multiprocessors exchanges have, dispatch
// and combine take kernels that were measured with so many, if there are some, and others move no
// more than so many do. A scatter and the gather behind it are an all-reduce (all_reduces.h) where
// that is shorter: half of it each, with norms and routers of all rows on each rank, and without an
// exchange of counts. Reads take the rate of the machine's disk and nothing of a device, and no
// time where that rate is 0. Sizes are as expected; all kinds of tasks have a price.
OperatorPrices PriceSchedule(const schedule::Schedule& schedule,
                             const schedule::ActivityGraph& graph, const OperatorCosts& costs,
                             const Sizes& sizes);

}  // namespace convene::cost
