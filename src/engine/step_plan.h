// Sequences that are all known beforehand, cut into steps and divided among the groups of ranks.
// For evaluation: requests that come and go are the scheduler's (scheduler.h). It runs nothing.
#pragma once

#include <span>
#include <vector>

namespace convene::engine {

// What a step of one group of ranks may hold, and how many groups there are.
struct StepLimits {
  int max_step_tokens = 0;
  int num_kv_blocks = 0;
  int num_groups = 1;
};

// Tokens [first_position, + num_tokens) of a sequence. Position 0 is the first of block first_block
// of the group's cache; those behind it are its next ones.
struct StepPart {
  int sequence_idx = 0;
  int group = 0;
  int first_position = 0;
  int num_tokens = 0;
  int first_block = 0;

  bool operator==(const StepPart&) const = default;
};
using PlannedStep = std::vector<StepPart>;

// Plans the steps for sequences of given lengths, each of which fits in num_kv_blocks. A sequence
// goes to the group with the fewest tokens so far. There it shares a step with others, or is cut
// into chunks where it is longer than a step. Parts of a sequence are in order; empty ones have
// none.
std::vector<PlannedStep> PlanSteps(std::span<const int> lengths, const StepLimits& limits);

// The same without cutting: no sequence is longer than a step, and all of them stay in order.
std::vector<PlannedStep> PlanWholeSteps(std::span<const int> lengths, const StepLimits& limits);

}  // namespace convene::engine
