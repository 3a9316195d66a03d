#include "runtime/cut_step.h"

#include <algorithm>

#include "strategy/layout.h"

namespace convene::runtime {

int CountRows(std::span<const device::SequenceStep> step, int group) {
  int num_rows = 0;
  for (const device::SequenceStep& sequence : step) {
    if (sequence.group == group) num_rows += static_cast<int>(sequence.tokens.size());
  }
  return num_rows;
}

std::vector<device::SequenceStep> CutStep(std::span<const device::SequenceStep> step, int group,
                                          int index, int num_micro_batches) {
  const strategy::Part rows = strategy::PartOf(CountRows(step, group), index, num_micro_batches);
  std::vector<device::SequenceStep> part;
  int first_row = 0;  // of the sequence
  for (const device::SequenceStep& sequence : step) {
    if (sequence.group != group) continue;
    const auto num_tokens = static_cast<int>(sequence.tokens.size());
    const int begin = std::clamp(rows.first - first_row, 0, num_tokens);
    const int end = std::clamp(rows.first + rows.size - first_row, 0, num_tokens);
    first_row += num_tokens;
    if (begin >= end) continue;
    device::SequenceStep& piece = part.emplace_back(sequence);
    piece.tokens =
        sequence.tokens.subspan(static_cast<size_t>(begin), static_cast<size_t>(end - begin));
    piece.first_position = sequence.first_position + begin;
    piece.first_logits_token = std::clamp(sequence.first_logits_token - begin, 0, end - begin);
  }
  return part;
}

}  // namespace convene::runtime
