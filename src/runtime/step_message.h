// What rank 0 tells the others of a step: everything but the activations.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "device/step_inputs.h"
#include "strategy/role.h"

namespace convene::runtime {

enum class StepKind {
  kEnd,
  kForward,
  kEncode,
  kChangePhase,  // no step: the experts of a phase alone
};

std::vector<std::byte> EndMessage();
std::vector<std::byte> ChangePhaseMessage(strategy::Phase phase);
std::vector<std::byte> ForwardMessage(std::span<const device::SequenceStep> step,
                                      strategy::Phase phase);
std::vector<std::byte> EncodeMessage(std::span<const device::EncoderInput> inputs,
                                     bool with_states);

// A message read back; what it holds points into `numbers`.
struct StepMessage {
  StepKind kind = StepKind::kEnd;
  strategy::Phase phase = strategy::Phase::kPrefill;  // whose experts the step has
  std::vector<device::SequenceStep> step;
  std::vector<device::EncoderInput> inputs;
  bool with_states = false;  // rank 0 wants the encoder's output
  std::vector<int32_t> numbers;
};
// `bytes` of this program's own making (CHECKed).
StepMessage ReadStepMessage(std::span<const std::byte> bytes);

}  // namespace convene::runtime
