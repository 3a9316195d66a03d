// What rank 0 tells the others of a step: everything but the activations.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "device/step_inputs.h"

namespace convene::runtime {

enum class StepKind { kEnd, kForward, kEncode };

std::vector<std::byte> EndMessage();
std::vector<std::byte> ForwardMessage(std::span<const device::SequenceStep> step);
std::vector<std::byte> EncodeMessage(std::span<const device::EncoderInput> inputs,
                                     bool with_states);

// A message read back; what it holds points into `numbers`.
struct StepMessage {
  StepKind kind = StepKind::kEnd;
  std::vector<device::SequenceStep> step;
  std::vector<device::EncoderInput> inputs;
  bool with_states = false;  // rank 0 wants the encoder's output
  std::vector<int32_t> numbers;
};
// `bytes` of this program's own making (CHECKed).
StepMessage ReadStepMessage(std::span<const std::byte> bytes);

}  // namespace convene::runtime
