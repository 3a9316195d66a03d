// Cuts a step into micro-batches: each group's rows, in the order of its sequences, into parts of
// equal size. In decode a part is some of the sequences; in prefill a sequence may lie in several,
// as if its tokens came in several steps.
#pragma once

#include <span>
#include <vector>

#include "device/step_inputs.h"

namespace convene::runtime {

// Rows of the sequences of `group`.
int CountRows(std::span<const device::SequenceStep> step, int group);

// Micro-batch `index` of `num_micro_batches` of what `group` has of the step; empty where it has
// fewer rows than there are micro-batches. Points to the same tokens and blocks.
std::vector<device::SequenceStep> CutStep(std::span<const device::SequenceStep> step, int group,
                                          int index, int num_micro_batches);

}  // namespace convene::runtime
