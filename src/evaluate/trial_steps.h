// The steps that stand for a workload, with random tokens, ready to be run: of prompts each typical
// one, of answers one. Which plans run them is try_plans.h.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "device/step_inputs.h"
#include "evaluate/try_plans.h"
#include "planner/workload_steps.h"
#include "strategy/role.h"

namespace convene::evaluate {

// A step with random tokens; contexts were never computed, and are what WriteCache left.
class StepToRun {
 public:
  StepToRun(const planner::StepSequences& groups, double count, strategy::Phase phase,
            int vocab_size);

  // Other tokens, so that it does not find in a cache the experts that it chose before; the same
  // ones for each number.
  void DrawTokens(uint64_t number);

  std::span<const device::SequenceStep> step() const { return sequences_; }
  double count() const { return count_; }  // steps of the workload that it stands for
  strategy::Phase phase() const { return phase_; }
  int num_blocks() const { return num_blocks_; }  // most of a group

 private:
  int vocab_size_;
  std::vector<std::vector<int32_t>> tokens_;
  std::vector<std::vector<int32_t>> blocks_;
  std::vector<device::SequenceStep> sequences_;
  double count_;
  strategy::Phase phase_;
  int num_blocks_ = 1;
};

// In the order in which a run has them.
std::vector<StepToRun> StepsOf(const TrialQuestion& question, const plan::Plan& plan,
                               int vocab_size);

}  // namespace convene::evaluate
