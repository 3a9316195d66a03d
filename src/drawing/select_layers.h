// A part of a step, to look at it closely.
#pragma once

#include "drawing/trace.h"

namespace convene::drawing {

// The step with the tasks of layers [first, last] alone. Each of its timelines begins at 0, with
// the first of these tasks; dependencies on tasks that are left out are left out, too.
TracedStep SelectLayers(const TracedStep& step, int first, int last);

// One more than the highest layer that has a task.
int NumLayers(const schedule::Schedule& schedule);

}  // namespace convene::drawing
