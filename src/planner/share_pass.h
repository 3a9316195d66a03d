// The pass that gives ranks shares of the experts in proportion to how fast they are, where they
// were measured to differ. The other passes are search_passes.cc.
#pragma once

#include <span>
#include <vector>

#include "planner/plan_search.h"

namespace convene::planner {

// By rank, how much longer than the profile's costs say tasks take that wait for memory, and tasks
// that wait for cores: experts have few rows in decode and many in prefill. None: ranks are alike.
std::vector<std::vector<double>> RankFactors(const PricerSource& source, const RankSetup& setup);

// How many of `num_experts` each share gets, whose ranks take `factors` times as long for a task as
// the profile's costs say: as the inverse of that, at least one each, reduced by what divides all.
// `factors` by share; of a share that several ranks have in slices, the slowest one's.
std::vector<int> SharesByRate(std::span<const double> factors, int num_experts);

// Of each layout with whole shares of experts, one in which they follow the rates of the ranks'
// memories, and one in which they follow those of their cores; and where ranks have unlike amounts
// of memory, one in which they follow what is left of these beside all that is no expert. Nothing
// where ranks are alike.
void AddUnequalShares(PlanSearch& search);

}  // namespace convene::planner
