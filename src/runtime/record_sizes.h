// Tells a recorder the sizes of a step that only its running makes known.
#pragma once

#include <span>

#include "device/frame.h"
#include "runtime/step_recorder.h"

namespace convene::runtime {

// Of a frame's rows, before its first task. `micro_batch` as in the schedule's tasks; `layers` are
// those of the stack that runs.
void RecordRows(const device::Frame& frame, std::span<const device::Layer> layers,
                const strategy::AttentionRole& role, int rank, int micro_batch,
                StepRecorder& recorder);

// What a task that is done has decided, of `num_ranks` ranks.
void RecordTask(const device::Frame& frame, const schedule::Task& task, int num_ranks,
                StepRecorder& recorder);

}  // namespace convene::runtime
