// A part of a step, to look at it closely.
#pragma once

#include "drawing/trace.h"

namespace convene::drawing {

// The tasks of layers [first, last] alone, and when they ran, from the first of them on: each
// timeline begins at 0. What waited for other tasks no longer does.
TracedStep SelectLayers(const TracedStep& step, int first, int last);

// Layers [0, n) have tasks.
int NumLayers(const schedule::Schedule& schedule);

}  // namespace convene::drawing
