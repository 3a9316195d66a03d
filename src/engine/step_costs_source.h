// Who tells the engine what steps cost on its ranks: somebody above it, who keeps profiles of
// machines or measures. What is asked and answered is known_costs.h.
#pragma once

#include <functional>

#include "base/result.h"

namespace convene::engine {

struct CostsRequest;
struct KnownCosts;

// *Collective*: called on all ranks; rank 0's answer counts. Error: they can be had from nowhere.
using StepCostsSource = std::function<Result<KnownCosts>(const CostsRequest&)>;

}  // namespace convene::engine
