// The exchanges of an engine whose ranks know the rows of all others, as DeepSpeed-FastGen's do,
// where convene's ranks do not. With tensor parallelism every rank has all rows: a layer has two
// all-reduces, one behind attention and one behind the experts, and no other exchange. Where all
// ranks have slices of all experts, rows are gathered and sums scattered by the collectives of that
// name, and no counts are exchanged. Schedules are convene's own (strategy/), and stay as they are.
#pragma once

#include "cost/machine_profile.h"
#include "planner/hybrid_costs.h"

namespace convene::papers {

// Seconds of NCCL's all-reduce of so many bytes among 4 or 8 ranks that this link joins. Measured
// on A100 over NVLink; another link reaches the same share of its rate, as operators of presets do
// (cost/operator_costs.h).
double AllReduceSeconds(double bytes, int num_ranks, double link_bytes_per_second);

// Prices of a layout's schedules as `price` has them, but for exchanges. Collectives that go round
// all ranks are priced by `ring`, which may be of a machine with simpler links: in a ring every
// link carries the same, whichever ranks share it. Passes over rows are left as they are, where
// ranks have fewer rows and more passes.
// Precondition: nothing is computed beside an exchange.
planner::PriceStep WithExchangesOfEngine(planner::PriceStep price, planner::PriceStep ring,
                                         double link_bytes_per_second,
                                         const strategy::Layout& layout);

}  // namespace convene::papers
