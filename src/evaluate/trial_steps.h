// The steps that stand for a workload, with random tokens, ready to be run: of prompts each typical
// one, of answers one; of an encoder-decoder with what the encoder sees before them. Which plans
// run them is try_plans.h.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "device/step_inputs.h"
#include "evaluate/try_plans.h"
#include "model/model_spec.h"
#include "planner/workload_steps.h"
#include "strategy/role.h"

namespace convene::evaluate {

// A step with random tokens; contexts were never computed, and are what WriteCache left. Inputs of
// an encoder lie before all other blocks of their group, so that a step of decode attends to what
// the encoder wrote there.
class StepToRun {
 public:
  StepToRun(const planner::TypicalStep& typical, strategy::Phase phase, int vocab_size);

  // Other tokens, so that it does not find in a cache the experts that it chose before; the same
  // ones for each number.
  void DrawTokens(uint64_t number);

  std::span<const device::SequenceStep> step() const { return sequences_; }
  // What the encoder sees before the step; none: it has seen all.
  std::span<const device::EncoderInput> inputs() const { return inputs_; }
  double count() const { return count_; }  // steps of the workload that it stands for
  strategy::Phase phase() const { return phase_; }
  int num_blocks() const { return num_blocks_; }  // most of a group
  int longest() const;                            // positions of a sequence or an input

 private:
  // Of positions behind `first_block`, which goes on.
  std::span<const int32_t> Blocks(int64_t num_positions, int& first_block);
  std::span<const int32_t> Tokens(int64_t num_tokens);

  int vocab_size_;
  std::vector<std::vector<int32_t>> tokens_;  // of all sequences and inputs
  std::vector<std::vector<int32_t>> blocks_;  // likewise
  std::vector<device::SequenceStep> sequences_;
  std::vector<device::EncoderInput> inputs_;
  double count_;
  strategy::Phase phase_;
  int num_blocks_ = 1;
};

// In the order in which a run has them.
std::vector<StepToRun> StepsOf(const TrialQuestion& question, const plan::Plan& plan,
                               const model::ModelSpec& spec);

}  // namespace convene::evaluate
