// The encoder's output for given inputs, without the scheduler.
#pragma once

#include <cstdint>
#include <span>

#include "base/result.h"
#include "engine/loaded_model.h"

namespace convene::engine {

// Error: the input is longer than the context, or than a step; says what to change.
Status CheckInput(const LoadedModel& model, std::span<const int32_t> tokens);

// Calls `sink` for every token of every input, in order, with its final hidden state (hidden).
// Inputs are encoded together, as many at a time as fit in a step and in the KV cache. Errors: a
// model without an encoder, an empty input, an unknown token, an input that does not fit,
// states that are NaN or infinite.
Status EncodeInputs(LoadedModel& model, std::span<const std::span<const int32_t>> inputs,
                    const runtime::StatesSink& sink);

}  // namespace convene::engine
