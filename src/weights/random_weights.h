// Weights of a given shape that nobody has trained, made in memory: for measurements, which need no
// checkpoint.
#pragma once

#include "base/result.h"
#include "memory/ledger.h"
#include "model/model_spec.h"
#include "weights/model_weights.h"
#include "weights/share.h"

namespace convene::weights {

// What `share` is of the model. Weights are small numbers, norms are 1, biases 0, and each router,
// which is the same on all ranks, sends tokens about evenly. Reserved in `ledger`. Errors: an
// encoder; a share that does not fit the model; no memory.
Result<ModelWeights> RandomWeights(const model::ModelSpec& whole, const WeightFormats& formats,
                                   const Share& share, int rank, memory::Ledger& ledger);

}  // namespace convene::weights
