// The pass of the search that divides the experts otherwise in decode than in prefill: for each
// number of ranks the integer program of hybrid_program.h over what the search's own prices say of
// each layout. Its tables hold nothing that other passes would price in another way.
#pragma once

#include "planner/plan_search.h"

namespace convene::planner {

// Whether plans of such ranks may have experts that come to decode's division from a backup in int4
// (plan::Transition::kInt4): that is allowed, and their weights are floats.
bool CanLoad(const PlanQuestion& question, const RankSetup& setup);

// Sets the epochs of a plan that divides the experts otherwise in decode, where this was asked for:
// for a stream the length that is best by its prices, shorter ones where limits ask for it; where
// all requests are there at once, all steps of decode.
void SetEpochs(PlanSearch& search, const RankSetup& setup, plan::Plan& plan);

// Adds the optimum of each setup where it has two divisions, and the best few others that would be
// faster than every single division; with the memory of each, not priced yet. All other triples
// are added as rejected, with the reason. Nothing where only one phase counts, a layout was asked
// for, or answers are of one token. Precondition: the layouts of one division are priced.
void AddHybrids(PlanSearch& search);

}  // namespace convene::planner
