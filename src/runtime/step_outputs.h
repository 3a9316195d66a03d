// Where the results of a step go: functions that are called while it runs. What a step is given is
// step_inputs.h.
#pragma once

#include <functional>
#include <span>

#include "device/stream.h"
#include "runtime/recorded_step.h"

namespace convene::runtime {

// The encoder's output (hidden) float32 for tokens[token_idx] of input `input_idx`; valid during
// the call. Calls come from the calling thread, in order.
using StatesSink = std::function<void(int input_idx, int token_idx, std::span<const float> states)>;

// logits (vocab) float32 of tokens[token_idx] of sequence `sequence_idx` of the step; the memory is
// valid during the call, and until the next step where this one has no more than kLogitsThatStay of
// them. Calls come from the calling thread, in order.
inline constexpr int kLogitsThatStay = device::Stream::kHeadRows;
using LogitsSink =
    std::function<void(int sequence_idx, int token_idx, std::span<const float> logits)>;

// What a step was on all ranks, after it, on rank 0; valid during the call.
using StepObserver = std::function<void(const RecordedStep&)>;

}  // namespace convene::runtime
