// How fast a rank gives its experts the division of another phase from what it keeps in its host's
// memory (weights/expert_backup.h): what a task of that kind costs, measured without a model.
#pragma once

#include <functional>
#include <vector>

#include "base/result.h"
#include "comm/group.h"
#include "cost/step_costs.h"
#include "memory/ledger.h"
#include "weights/model_weights.h"

namespace convene::evaluate {

// What a rank computes while it loads: some 10 to 50 ms of it, by so many threads on these CPUs.
struct ComputationBeside {
  std::vector<int> cpus;
  int num_threads = 1;
  std::function<void()> run;
};

// *Collective*, some 0.2 s, and as much as a second with what loading takes of computation: by a
// thread of each rank at once, this one's. Formats are f32 or bf16. `computation` with nothing to
// run: its factors stay 1, as they do where there is no thread for it. Error, the same on all
// ranks: no memory, of which it takes some 60 MB for a while.
Result<cost::LoadRates> MeasureLoads(comm::Group& group, const weights::WeightFormats& formats,
                                     memory::Ledger& ledger,
                                     const ComputationBeside& computation = {});

}  // namespace convene::evaluate
