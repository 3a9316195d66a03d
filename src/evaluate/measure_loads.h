// How fast a rank gives its experts the division of another phase from what it keeps in its host's
// memory (weights/expert_backup.h): what a task of that kind costs, measured without a model.
#pragma once

#include "base/result.h"
#include "comm/group.h"
#include "cost/step_costs.h"
#include "memory/ledger.h"
#include "weights/model_weights.h"

namespace convene::evaluate {

// *Collective*, some 0.2 s: by a thread of each rank at once, this one's. Formats are f32 or bf16.
// Error, the same on all ranks: no memory, of which it takes some 60 MB for a while.
Result<cost::LoadRates> MeasureLoads(comm::Group& group, const weights::WeightFormats& formats,
                                     memory::Ledger& ledger);

}  // namespace convene::evaluate
