// Where each packed matrix of a model lies in one block of memory. Reads nothing.
#pragma once

#include <cstdint>

#include "weights/model_weights.h"
#include "weights/share.h"

namespace convene::weights {

// Of a large matrix, with its scales.
double BytesPerWeight(const WeightFormats& formats);

// The rooms that experts need whose division changes between two phases, as `share` says; none
// otherwise. `whole` is the model of the checkpoint, which the share fits.
ExpertRooms RoomsOf(const model::ModelSpec& whole, const WeightFormats& formats,
                    const Share& share);

// Gives every matrix of `weights` its shape and its place behind `base` (64-byte aligned, or null:
// shapes and sizes only). `spec` is LocalSpec of `share`. The experts of the decoder's layers begin
// with a room each, if there are rooms. Returns the bytes needed.
uint64_t LayOut(const model::ModelSpec& spec, const WeightFormats& formats, const std::byte* base,
                ModelWeights* weights, const Share& share = {}, const ExpertRooms& rooms = {});

// Gives MoeWeights::decode_experts of the decoder's layers their shapes. Where both divisions stay
// in memory and `weights` has its rooms already, each layer that changes takes a free one for them;
// otherwise they have no data.
void LayOutDecode(const model::ModelSpec& whole, const Share& share, ModelWeights* weights);

}  // namespace convene::weights
