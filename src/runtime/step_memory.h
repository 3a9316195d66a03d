// How large the steps of a rank are: the frames of its micro-batches and what devices must know of
// them to work. Found before anything is loaded; whose the memory is then is the device's matter.
#pragma once

#include "device/frame.h"
#include "device/step_shape.h"
#include "device/wire_rows.h"
#include "model/model_spec.h"
#include "runtime/transformer_options.h"

namespace convene::runtime {

device::StepShape StepShapeOf(const model::ModelSpec& spec, const TransformerOptions& options);

device::WireRows WireRowsOf(const model::ModelSpec& spec, const TransformerOptions& options);

// Of micro-batch `index`.
device::Frame::Options FrameOptions(const model::ModelSpec& spec, const TransformerOptions& options,
                                    int index);

// Steps of fewer tokens over all groups are one micro-batch: not every rank would have rows in
// each.
int FewestTokensToCut(const TransformerOptions& options);

}  // namespace convene::runtime
