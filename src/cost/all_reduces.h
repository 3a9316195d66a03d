// Where an all-reduce stands in a schedule: schedules have its two halves, a scatter of partial
// sums to the rows' owners and a gather of the same rows for the next block, with what owners do to
// their rows between. An engine that has one operator for both computes that on all ranks. Prices
// of it are operator_prices.h.
#pragma once

#include <span>
#include <vector>

#include "cost/sizes.h"
#include "model/model_spec.h"
#include "schedule/activity_graph.h"
#include "schedule/schedule.h"

namespace convene::cost {

// Whether a collective brings all rows of each of its ranks to all others of them, as for a block
// whose matrices or experts are sliced; and whether it brings partial sums of all rows to their
// owners. `tasks`: all of the collective.
bool IsGather(const schedule::Schedule& schedule, std::span<const schedule::TaskId> tasks,
              const model::ModelSpec& spec, const Sizes& sizes);
bool IsScatter(const schedule::Schedule& schedule, std::span<const schedule::TaskId> tasks,
               const model::ModelSpec& spec, const Sizes& sizes);

struct AllReduce {
  int scatter = 0;  // activities, as are the next two
  int gather = 0;
  int counts = -1;  // how many rows come, which all ranks know where all rows come; -1: none
  // Norms and routers between the two, each of its rank's own rows; an all-reduce leaves all rows
  // on all ranks, which then do this to all of them.
  std::vector<schedule::TaskId> passes = {};
};

// In the order of their gathers.
std::vector<AllReduce> FindAllReduces(const schedule::Schedule& schedule,
                                      const schedule::ActivityGraph& graph,
                                      const model::ModelSpec& spec, const Sizes& sizes);

}  // namespace convene::cost
