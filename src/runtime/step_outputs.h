// Where the results of a step go: functions that are called while it runs. What a step is given is
// step_inputs.h.
#pragma once

#include <cstdint>
#include <functional>
#include <span>

#include "base/check.h"
#include "device/stream.h"
#include "runtime/recorded_step.h"

namespace convene::runtime {

// The encoder's output (hidden) float32 for tokens[token_idx] of input `input_idx`; valid during
// the call. Calls come from the calling thread, in order.
using StatesSink = std::function<void(int input_idx, int token_idx, std::span<const float> states)>;

// What a step says of a token's logits.
class Logits {
 public:
  explicit Logits(std::span<const float> all) : all_(all) {}
  explicit Logits(int32_t largest) : largest_(largest) {}

  // Whether a device found the largest and kept the others, as SequenceStep::largest_suffices
  // allows.
  bool is_largest_alone() const { return all_.empty(); }
  // Then: its token, the lowest one of equals; less than 0: some logits are NaN or infinite.
  int32_t largest() const { return largest_; }
  // Otherwise (CHECK): (vocab) float32. Who has not allowed the former need not ask.
  operator std::span<const float>() const {  // NOLINT(google-explicit-constructor)
    CHECK(!is_largest_alone(), "the largest logit alone was fetched");
    return all_;
  }

 private:
  std::span<const float> all_;
  int32_t largest_ = -1;
};

// The logits of tokens[token_idx] of sequence `sequence_idx` of the step; the memory is
// valid during the call, and until the next step where this one has no more than kLogitsThatStay of
// them. Calls come from the calling thread, in order.
inline constexpr int kLogitsThatStay = device::Stream::kHeadRows;
using LogitsSink = std::function<void(int sequence_idx, int token_idx, const Logits& logits)>;

// What a step was on all ranks, after it, on rank 0; valid during the call.
using StepObserver = std::function<void(const RecordedStep&)>;

}  // namespace convene::runtime
