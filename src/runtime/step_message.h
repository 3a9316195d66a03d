// What rank 0 tells the others of a step: everything but the activations.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "device/step_inputs.h"
#include "strategy/role.h"
#include "strategy/step.h"

namespace convene::runtime {

enum class StepKind {
  kEnd,
  kForward,
  kEncode,
  kChangePhase,  // no step: the experts of a phase alone
  kUsePipeline,  // no step: how those to come are divided in time
};

std::vector<std::byte> EndMessage();
std::vector<std::byte> UsePipelineMessage(const strategy::Pipeline& pipeline);
// `is_recorded`: rank 0 will gather what all ranks know of the step (StepRecorder).
std::vector<std::byte> ChangePhaseMessage(strategy::Phase phase, bool is_recorded = true);
// `decode_follows`: as Transformer::Forward's.
std::vector<std::byte> ForwardMessage(std::span<const device::SequenceStep> step,
                                      strategy::Phase phase, bool is_recorded = true,
                                      bool decode_follows = false);
std::vector<std::byte> EncodeMessage(std::span<const device::EncoderInput> inputs, bool with_states,
                                     bool is_recorded = true);

// A message read back; what it holds points into `numbers`.
struct StepMessage {
  StepKind kind = StepKind::kEnd;
  strategy::Phase phase = strategy::Phase::kPrefill;  // whose experts the step has
  std::vector<device::SequenceStep> step;
  std::vector<device::EncoderInput> inputs;
  bool with_states = false;  // rank 0 wants the encoder's output
  bool is_recorded = false;
  bool decode_follows = false;       // of kForward
  strategy::Pipeline pipeline = {};  // of kUsePipeline
  std::vector<int32_t> numbers;
};
// `bytes` of this program's own making (CHECKed).
StepMessage ReadStepMessage(std::span<const std::byte> bytes);

}  // namespace convene::runtime
