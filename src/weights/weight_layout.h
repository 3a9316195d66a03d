// Where each packed matrix of a model lies in one block of memory. Reads nothing.
#pragma once

#include <cstdint>

#include "weights/model_weights.h"
#include "weights/share.h"

namespace convene::weights {

// Gives every matrix of `weights` its shape and its place behind `base` (64-byte aligned, or null:
// shapes and sizes only). `spec` is LocalSpec of `share`. Returns the bytes needed.
uint64_t LayOut(const model::ModelSpec& spec, const WeightFormats& formats, const std::byte* base,
                ModelWeights* weights, const Share& share = {});

}  // namespace convene::weights
