// From a model's layers to the jobs that pack them, and their vectors, which are small and read at
// once. Knows the order of rows that kernels want; packs nothing.
#pragma once

#include "weights/pack_jobs.h"

namespace convene::weights {

// `tensors` and `jobs` are of the decoder; the matrices of `weights` have their shapes already.
void DecoderJobs(const StoredTensors& tensors, ModelWeights* weights, PackJobs* jobs);

// The same of the encoder.
void EncoderJobs(const StoredTensors& tensors, const model::ModelSpec& spec,
                 EncoderWeights* weights, PackJobs* jobs);

}  // namespace convene::weights
