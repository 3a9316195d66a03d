// Weights that are NaN or infinite, and the names of the tensors that hold them. A model with one
// computes nothing that means anything, so it is refused; what is met only while a model runs
// (matrices that were packed ahead and are mapped) is looked for here afterwards.
#pragma once

#include <optional>
#include <string>

#include "base/result.h"
#include "checkpoint/checkpoint.h"
#include "weights/model_weights.h"
#include "weights/pack_jobs.h"

namespace convene::weights {

// Error: a norm, a bias or another vector of the checkpoint is not finite. Minus infinity passes
// where it means "never": in sinks and in the biases of routers.
Status CheckVectors(const checkpoint::Checkpoint& checkpoint);

// The same of weights that were packed ahead and are mapped; their matrices are not read.
Status CheckVectors(ModelWeights& weights);

// The error of a job whose packing met what is not finite in the target's format: names the tensor,
// the place and the value.
Error NotFiniteError(const PackJob& job);

// The packed matrix that is not finite, as "layers.3.router (row 5)"; of integers the scales are
// looked at. Reads all weights, once they are suspected; nobody may change them meanwhile, as a
// paged store does that reads ahead.
std::optional<std::string> FindNotFinite(const ModelWeights& weights);

}  // namespace convene::weights
