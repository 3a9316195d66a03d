// How fast the machine is for a model that is loaded, by the reference kernels that profiles tell
// of (reference_kernel.h), so that steps of the model can be held against a profile.
#pragma once

#include "base/result.h"
#include "cost/task_cost.h"
#include "engine/loaded_model.h"

namespace convene::evaluate {

// From the thread that computes, with no step under way. Takes some 100 ms and 150 MB, which are
// given back. The model has one rank, on CPUs (CHECKed but for the CPUs). Error: the model's budget
// has not that much left.
Result<cost::ReferenceSpeed> MeasureSpeedBeside(engine::LoadedModel& model);

}  // namespace convene::evaluate
