// From a model's layers to the jobs that pack them, and their vectors, which are small and read at
// once. Knows the order of rows that kernels want; packs nothing.
#pragma once

#include "weights/pack_jobs.h"
#include "weights/share.h"

namespace convene::weights {

// `tensors` and `jobs` are of the decoder, `whole` is the model of the checkpoint; the matrices of
// `weights` have the shapes of `share` already.
void DecoderJobs(const StoredTensors& tensors, const model::ModelSpec& whole, const Share& share,
                 ModelWeights* weights, PackJobs* jobs);

// DecoderJobs of the encoder.
void EncoderJobs(const StoredTensors& tensors, const model::ModelSpec& whole, const Share& share,
                 ModelWeights* weights, PackJobs* jobs);

}  // namespace convene::weights
