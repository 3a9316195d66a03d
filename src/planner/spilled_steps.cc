#include "planner/spilled_steps.h"

#include <algorithm>
#include <cmath>

#include "base/check.h"
#include "strategy/kv_block_tokens.h"

namespace convene::planner {
namespace {

using strategy::kKvBlockTokens;

// That hold the sequence when the step has ended.
double BlocksAfter(const strategy::SequenceRows& sequence) {
  const auto end = static_cast<double>(sequence.first_position + sequence.num_tokens);
  return std::ceil(end / kKvBlockTokens);
}

}  // namespace

int BlocksOfSequence(double num_tokens) {
  return static_cast<int>(std::ceil(num_tokens / kKvBlockTokens)) + 1;
}

std::optional<strategy::SpilledKv> SpilledStepOf(const plan::SpilledKv& planned, int num_blocks,
                                                 const StepSequences& groups) {
  CHECK(groups.size() == 1, "keys and values on a disk of {} groups of ranks", groups.size());
  if (num_blocks <= planned.blocks_in_memory) return std::nullopt;
  const double missing = 1 - static_cast<double>(planned.blocks_in_memory) / num_blocks;
  double room = planned.buffer_blocks;
  // A buffer has room for one sequence at least.
  for (const auto& sequence : groups.front())
    room = std::max(room, missing * BlocksAfter(sequence));
  // Each part has as many sequences, one behind the other, as have room in a buffer.
  strategy::SpilledKv spilled{.parts = 1, .depth = planned.buffers, .missing = missing};
  double used = 0;
  for (const auto& sequence : groups.front()) {
    const double blocks = missing * BlocksAfter(sequence);
    if (used + blocks > room) {
      ++spilled.parts;
      used = 0;
    }
    used += blocks;
  }
  return spilled;
}

}  // namespace convene::planner
